"""`aghd check-store`: whether the store is whole, without starting the daemon and without changing anything.

A quick look is what the next start would do: owner and version, the mark, and the pages if the file was not closed in order.
The whole check reads every page, index entry and envelope, as long as that takes. `--accept-loss` is the one thing that writes.
"""

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Final

import msgspec

from aghbus.protocol.text import escape
from aghbus.store.engine import integrity, meta
from aghbus.store.engine.commit_marker import Mark, read_mark
from aghbus.store.engine.database import Store, open_to_inspect
from aghbus.store.engine.store_lock import is_locked
from aghbus.store.errors import StoreError

_SHOWN: Final = 5  # contradictions and sequences named in one sentence


class Finding(msgspec.Struct, frozen=True):
    """One check: `state` is ok, warn or fail, `hint` what to do when it is not ok (the rows of `aghctl doctor`)."""

    check: str
    state: str
    detail: str
    hint: str = ""


class Checked(msgspec.Struct, frozen=True):
    """What was looked at; `ok` when no check failed."""

    ok: bool
    store: str
    checks: list[Finding]


def check_store(path: Path, *, quick: bool) -> Checked:
    """Everything that can be said about the store at `path`. Raises nothing for what is wrong with it."""
    found = _check(path, quick=quick)
    return Checked(all(one.state != "fail" for one in found), str(path), found)


def as_json(checked: Checked) -> str:
    """For programs: what `aghctl doctor` reads."""
    return msgspec.json.encode(checked).decode()


def as_text(checked: Checked) -> str:
    """For people: one line for each check, and its hint below it."""
    lines = [f"{one.state:<4}  {one.check}: {escape(one.detail)}" for one in checked.checks]
    hints = [f"\n      hint: {escape(one.hint)}" if one.hint else "" for one in checked.checks]
    return "\n".join(map("".join, zip(lines, hints, strict=True)))


def _check(path: Path, *, quick: bool) -> list[Finding]:
    if not os.path.lexists(path):
        return [_absent(path)]
    try:
        mark = read_mark(path)  # before the store: the mark of a running daemon is never ahead of what we read after it
        db = open_to_inspect(path)
    except StoreError as error:
        return [Finding("store file", "fail", str(error), error.hint)]
    except OSError as error:
        return [Finding("store file", "fail", f"{path}: {error.strerror}", "check its permissions")]
    try:
        return _findings(db, path, mark, quick=quick)
    except sqlite3.Error as error:
        return [Finding("store file", "fail", f"{path}: {escape(str(error))}", integrity.DAMAGED_HINT)]
    finally:
        db.close()


def accept_loss(path: Path) -> str:
    """Ends the warning about lost commits; what was accepted. Raises StoreError: the daemon must not run."""

    async def accept() -> str:
        store = await Store.open(path, name="aghd check-store")
        try:
            loss = await store.write(integrity.accept_loss)
        finally:
            await store.close()
        return "no loss is on record" if loss is None else f"accepted: {loss}"

    return asyncio.run(accept())


def _absent(path: Path) -> Finding:
    try:
        mark = read_mark(path)
    except OSError:
        mark = None
    if mark is not None and mark.commits:
        detail = f"{path} is gone, but its mark is there: it held {mark.commits} commits up to sequence {mark.last_seq}"
        return Finding("store file", "fail", detail, "put the file back, or move the mark away to start without it")
    return Finding("store file", "ok", f"{path} does not exist yet: the daemon makes it")


def _findings(db: sqlite3.Connection, path: Path, mark: Mark | None, *, quick: bool) -> list[Finding]:
    running = is_locked(path)
    found = [_commits(db, mark, running=running)]
    if booked := integrity.booked(db):
        found.append(Finding("earlier loss", "warn", str(booked), integrity.LOST_HINT))
    if not quick:
        return [*found, _pages(db, "PRAGMA integrity_check"), _references(db), _envelopes(db)]
    if running or meta.get(db, "closed") == 1:
        how = "in use" if running else "closed in order"
        return [*found, Finding("store pages", "ok", f"{how}; `aghd check-store` reads them all")]
    return [*found, _pages(db, "PRAGMA quick_check")]


def _commits(db: sqlite3.Connection, mark: Mark | None, *, running: bool) -> Finding:
    identity = meta.get(db, "identity")
    loss = integrity.lost(db, identity, mark)
    if loss is not None:
        how = "the daemon that runs has not noticed yet" if running else "the next start books it and goes on"
        return Finding("store commits", "fail", f"{loss}; {how}", integrity.LOST_HINT)
    if note := integrity.remark(db, identity, mark):
        return Finding("store commits", "warn", note, "nothing to do, if you copied or restored it yourself")
    return Finding("store commits", "ok", f"{integrity.commits(db)}, none missing")


def _pages(db: sqlite3.Connection, pragma: str) -> Finding:
    verdicts = [escape(verdict) for (verdict,) in db.execute(f"{pragma}({_SHOWN})")]
    if verdicts != ["ok"]:
        return Finding("store pages", "fail", "; ".join(verdicts), integrity.DAMAGED_HINT)
    return Finding("store pages", "ok", "no contradiction found")


def _references(db: sqlite3.Connection) -> Finding:
    astray = db.execute("PRAGMA foreign_key_check").fetchmany(_SHOWN)
    if astray:
        rows = ", ".join(f"{row[0]} {row[1]}" for row in astray)
        return Finding("store references", "fail", f"rows without their envelope: {rows}", integrity.DAMAGED_HINT)
    return Finding("store references", "ok", "every inbox and outbox row has its envelope")


def _envelopes(db: sqlite3.Connection) -> Finding:
    garbled = integrity.unreadable(db)
    if garbled:
        which = ", ".join(map(str, garbled[:_SHOWN]))
        detail = f"{len(garbled)} envelopes are not what was received (sequence {which})"
        return Finding("store envelopes", "fail", detail, integrity.DAMAGED_HINT)
    return Finding("store envelopes", "ok", "all can be read")
