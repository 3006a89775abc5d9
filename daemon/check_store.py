"""Checks of the store's file for `aghd check-store`, without the daemon and without changing anything.

The quick check is that of the next start: owner, version, commit watermark, and the pages if the file was not closed cleanly.
The whole check reads every page, index entry and envelope, and verifies the ledger.
Only `accept_loss` and `rebuild_indexes` write.
"""

import asyncio
import os
from pathlib import Path
from typing import Final

import msgspec

from aghbus.protocol.base.text import escape
from aghbus.store.audit.reader import AuditReader
from aghbus.store.audit.verify import verify
from aghbus.store.engine import integrity, meta
from aghbus.store.engine.commit.ledger import stored_head
from aghbus.store.engine.commit.watermark import CommitWatermark, read_watermark
from aghbus.store.engine.database import Store, open_to_inspect
from aghbus.store.engine.log import segments
from aghbus.store.engine.log.check import index_problems
from aghbus.store.engine.schema import earlier
from aghbus.store.engine.schema_check import schema_problems
from aghbus.store.engine.sql import Connection, DatabaseError
from aghbus.store.engine.store_lock import is_locked
from aghbus.store.errors import StoreError

_REBUILD_HINT: Final = "stop the daemon and run `aghd check-store --rebuild-indexes`"
_SHOWN: Final = 5  # errors and sequences named in one sentence


class StoreCheck(msgspec.Struct, frozen=True):
    """The result of one check: `state` is ok, warn or fail, `hint` the next step if it is not ok. A row of `aghctl doctor`."""

    check: str
    state: str
    detail: str
    hint: str = ""


class StoreReport(msgspec.Struct, frozen=True):
    """The results of all checks; `ok` if none failed."""

    ok: bool
    store: str
    checks: list[StoreCheck]

    def as_json(self) -> str:
        """The form that `aghctl doctor` reads."""
        return msgspec.json.encode(self).decode()

    def as_text(self) -> str:
        """One line for each check, and its hint below it."""
        lines = []
        for one in self.checks:
            lines.append(f"{one.state:<4}  {one.check}: {escape(one.detail)}")
            lines += [f"      hint: {escape(one.hint)}"] if one.hint else []
        return "\n".join(lines)


def check_store(path: Path, *, quick: bool) -> StoreReport:
    """Check the store at `path`. A damaged or missing file is a failed check, not an exception."""
    found = _check(path, quick=quick)
    return StoreReport(all(one.state != "fail" for one in found), str(path), found)


def _check(path: Path, *, quick: bool) -> list[StoreCheck]:
    if not os.path.lexists(path):
        return [_absent(path)]
    try:
        watermark = read_watermark(path)  # first: that of a running daemon is never ahead of the store read after it
        db = open_to_inspect(path, any_schema=True)
    except StoreError as error:
        return [StoreCheck("store file", "fail", str(error), error.hint)]
    except OSError as error:
        return [StoreCheck("store file", "fail", f"{path}: {error.strerror}", "check its permissions")]
    try:
        return _check_open(db, path, watermark, quick=quick)
    except DatabaseError as error:
        return [StoreCheck("store file", "fail", f"{path}: {escape(str(error))}", integrity.DAMAGED_HINT)]
    finally:
        db.close()


def accept_loss(path: Path) -> str:
    """End the warning about lost commits; returns a description of the loss. Raises StoreError if the daemon runs."""

    async def accept() -> str:
        store = await Store.open(path, name="aghd check-store")
        try:
            loss = await store.write(integrity.accept_loss)
        finally:
            await store.close()
        return "no loss is on record" if loss is None else f"accepted: {loss}"

    return asyncio.run(accept())


def rebuild_indexes(path: Path) -> str:
    """Make the indexes of the log again. Raises StoreError if the daemon runs."""

    async def rebuild() -> None:
        store = await Store.open(path, name="aghd check-store")
        try:
            await store.write(lambda tx: segments.clear(tx.db))
        finally:
            await store.close()
        await (await Store.open(path, name="aghd check-store")).close()  # makes them

    asyncio.run(rebuild())
    return "the indexes are made again"


def _absent(path: Path) -> StoreCheck:
    try:
        watermark = read_watermark(path)
    except OSError:
        watermark = None
    if watermark is not None and watermark.head.n:
        held = f"{watermark.head.n} commits up to sequence {watermark.head.last_seq}"
        detail = f"{path} is missing, but its .mark file exists: it contained {held}"
        return StoreCheck(
            "store file", "fail", detail, "restore the file, or move the .mark file away to start without it"
        )
    return StoreCheck("store file", "ok", f"{path} does not exist yet: the daemon creates it")


def _check_open(db: Connection, path: Path, watermark: CommitWatermark | None, *, quick: bool) -> list[StoreCheck]:
    running = is_locked(path)
    found = [_commits(db, watermark, running=running)]
    if loss := integrity.recorded_loss(db):
        found.append(StoreCheck("earlier loss", "warn", str(loss), integrity.LOST_HINT))
    if not quick:
        found += [_schema(db), _pages(db, "PRAGMA integrity_check"), _references(db)]
        if earlier(db):
            return found  # the other checks read the tables of this program
        return [*found, _envelopes(db), _indexes(db), _ledger(db, watermark)]
    if running or meta.get(db, "closed") == 1:
        how = "in use" if running else "closed cleanly"
        return [*found, StoreCheck("store pages", "ok", f"{how}; `aghd check-store` reads them all")]
    return [*found, _pages(db, "PRAGMA quick_check")]


def _commits(db: Connection, watermark: CommitWatermark | None, *, running: bool) -> StoreCheck:
    identity = meta.get(db, "identity")
    loss = integrity.find_loss(db, identity, watermark)
    if loss is not None:
        how = "the running daemon has not detected it yet" if running else "the next start records it and continues"
        return StoreCheck("store commits", "fail", f"{loss}; {how}", integrity.LOST_HINT)
    if note := integrity.watermark_problem(db, identity, watermark):
        return StoreCheck("store commits", "warn", note, "nothing to do if you copied or restored it yourself")
    return StoreCheck("store commits", "ok", f"{stored_head(db).n}, none missing")


def _schema(db: Connection) -> StoreCheck:
    if problems := schema_problems(db):
        hint = "another program has changed the file: restore a backup"
        return StoreCheck("store schema", "fail", "; ".join(map(escape, problems[:_SHOWN])), hint)
    if cause := earlier(db):
        return StoreCheck("store schema", "warn", f"it {cause}", "the next start updates it; then check again")
    return StoreCheck("store schema", "ok", "tables, indexes, views and triggers are those of this program")


def _pages(db: Connection, pragma: str) -> StoreCheck:
    verdicts = [escape(verdict) for (verdict,) in db.execute(f"{pragma}({_SHOWN})")]
    if verdicts != ["ok"]:
        return StoreCheck("store pages", "fail", "; ".join(verdicts), integrity.DAMAGED_HINT)
    return StoreCheck("store pages", "ok", "no error found")


def _references(db: Connection) -> StoreCheck:
    orphans = db.execute("PRAGMA foreign_key_check").fetchmany(_SHOWN)
    if orphans:
        rows = ", ".join(f"{row[0]} {row[1]}" for row in orphans)
        return StoreCheck("store references", "fail", f"rows without their envelope: {rows}", integrity.DAMAGED_HINT)
    return StoreCheck("store references", "ok", "every inbox and outbox row has its envelope")


def _envelopes(db: Connection) -> StoreCheck:
    damaged = sorted(integrity.damaged(db))
    if damaged:
        which = ", ".join(map(str, damaged[:_SHOWN]))
        detail = f"{len(damaged)} envelopes differ from those that were stored (sequence {which})"
        return StoreCheck("store envelopes", "fail", detail, integrity.DAMAGED_HINT)
    return StoreCheck("store envelopes", "ok", "all are as they were stored")


def _indexes(db: Connection) -> StoreCheck:
    db.execute("BEGIN")
    problems = index_problems(db)
    db.execute("COMMIT")
    if problems:
        return StoreCheck("store indexes", "fail", "; ".join(problems), _REBUILD_HINT)
    return StoreCheck("store indexes", "ok", "they agree with the envelopes")


def _ledger(db: Connection, watermark: CommitWatermark | None) -> StoreCheck:
    """The stored envelopes against the ledger (docs/audit.md)."""
    db.execute("BEGIN")
    try:
        report = verify(AuditReader(db, watermark), None, lambda _: None)
    except ValueError as error:
        return StoreCheck("store ledger", "fail", escape(str(error)), integrity.DAMAGED_HINT)
    finally:
        db.execute("COMMIT")
    if report.found:
        detail = f"{report.found} defects: {'; '.join(map(escape, report.findings[:_SHOWN]))}"
        return StoreCheck("store ledger", "fail", detail, integrity.DAMAGED_HINT)
    return StoreCheck("store ledger", "ok", f"{report.commits} commits and {report.envelopes} envelopes agree")
