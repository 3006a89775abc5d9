"""The audit log of a store as a test reads and changes it."""

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from aghbus.store.audit import events as audit
from aghbus.store.audit.reader import open_audit_log
from aghbus.store.audit.verify import AuditReport, verify
from aghbus.store.engine.commit.ledger import KeptHead
from aghbus.store.engine.database import Store
from aghbus.store.engine.sql import checksum_of
from tests.support.makers import NOW_MS


async def policies(store: Store, count: int, at_ms: int = NOW_MS) -> None:
    """So many events, each in a commit of its own."""
    for number in range(count):
        await store.write(partial(audit.note_policy, at_ms=at_ms + number, outcome="tried", reason=f"number {number}"))


def checked(path: Path, kept: KeptHead | None = None) -> AuditReport:
    """The report of a verification of the file."""
    with open_audit_log(path) as reader:
        return verify(reader, kept, lambda _done: None)


def exported(path: Path, *, entries: bool = False) -> list[dict[str, Any]]:
    """The exported log."""
    with open_audit_log(path) as reader:
        return list(reader.export(0, print, entries=entries))


def changed(path: Path, change: Callable[[sqlite3.Connection], object]) -> None:
    """Another program writes in the file; SQL has a function `checksum_of`."""
    db = sqlite3.connect(path)
    db.create_function("checksum_of", 1, checksum_of)
    with db:
        change(db)
    db.close()
