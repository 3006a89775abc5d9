"""The audit log: which events have a row, and that a changed, removed or moved row is detected."""

import hashlib
import json
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aghbus.protocol.errors import Refused
from aghbus.store.audit import events as audit
from aghbus.store.audit.verify import AuditReport, open_audit_log
from aghbus.store.engine.audit_chain import AuditChain, AuditEntry, AuditHead, head_path, parse_head, read_head_file
from aghbus.store.engine.database import Store
from aghbus.store.engine.sidecar import SidecarFile
from aghbus.store.engine.state import InMemoryState
from aghbus.store.engine.transaction import Transaction
from aghbus.store.errors import StoreDamaged, StoreUnopenable
from aghbus.store.retention import AUDIT_STEP_ROWS, sweep_audit
from tests.support.makers import BOB, EVE, NOW, NOW_MS, US, receive, rows, say, sending, trace

Change = Callable[[sqlite3.Connection], object]
ROWS = 12


@pytest.fixture
async def logged(store: Store) -> Store:
    """A store whose log is on."""
    store.memory.audit.enabled = True
    return store


async def lines(store: Store) -> list[list[Any]]:
    """The log as JSON says it."""
    return [json.loads(line) for (line,) in await rows(store, "SELECT line FROM audit ORDER BY n")]


async def policies(store: Store, count: int, at_ms: int = NOW_MS) -> None:
    """So many rows, each of its own transaction."""
    for number in range(count):
        await store.write(partial(audit.note_policy, at_ms=at_ms + number, outcome="tried", reason=f"number {number}"))


def checked(path: Path, kept: AuditHead | None = None) -> AuditReport:
    """What a check of the file says."""
    with open_audit_log(path) as reader:
        return reader.verify(kept, lambda _done: None)


def changed(path: Path, change: Change) -> None:
    """Somebody with a tool of his own writes in the file."""
    db = sqlite3.connect(path)
    with db:
        change(db)
    db.close()


# What becomes a row


async def test_a_received_message_is_a_row_without_its_text(logged: Store) -> None:
    envelope = say(text="a secret of mine", work_id="work_one")
    await receive(logged, envelope)
    (row,) = await lines(logged)
    digest = hashlib.sha256(envelope.raw).hexdigest()
    expected = [1, NOW_MS, "receive", "opened", None, envelope.id, BOB, US, "builders", "say", "work_one", "unverified"]
    assert row == [*expected, digest]
    assert "secret" not in json.dumps(await lines(logged))


async def test_a_rejection_by_the_lifecycle_is_a_reject_row_and_our_answer_a_send_row(logged: Store) -> None:
    await receive(logged, say(work_id="work_one"))
    await logged.write(sending(trace("completed", sender=US, to=BOB, work_id="work_one")))
    await receive(logged, say(sender=EVE, work_id="work_one"))
    await receive(logged, say(work_id="work_one"))
    assert [(row[2], row[3], row[4], row[6], row[9]) for row in await lines(logged)] == [
        ("receive", "opened", None, BOB, "say"),
        ("send", "advanced", None, US, "trace"),
        ("receive", "ignored", "actor_not_allowed", EVE, "say"),
        ("reject", "rejected", "work_closed", BOB, "say"),
        ("send", "again", "the peer referred to a work that has ended", US, "trace"),
        ("send", "unchanged", None, US, "receipt"),
    ]


async def test_a_sent_message_has_a_send_row_and_another_when_it_is_given_up(logged: Store) -> None:
    envelope = say(sender=US, to=BOB)
    applied = await logged.write(sending(envelope))
    await logged.write(lambda tx: audit.note_outgoing(tx, NOW_MS + 5, applied.queued[0], "expired", "no answer"))
    sent, ended = await lines(logged)
    assert (sent[2:5], ended[2:5]) == (["send", "kept", None], ["send", "expired", "no answer"])
    assert sent[5:] == ended[5:]
    assert sent[-1] == hashlib.sha256(envelope.raw).hexdigest()


async def test_refused_bytes_of_any_kind_are_a_row(logged: Store) -> None:
    raw = b'{"id":"\\ud800'
    await logged.write(
        lambda tx: audit.note_refused(tx, NOW_MS, raw, "malformed", envelope=None, msg_id="\ud800", sender="x" * 10_000)
    )
    (row,) = await lines(logged)
    assert row[2:6] == ["reject", "refused", "malformed", "\\ud800"]
    assert len(row[6]) < 1000
    assert row[-1] == hashlib.sha256(raw).hexdigest()


async def test_a_log_that_is_off_has_no_rows(store: Store) -> None:
    await receive(store, say())
    assert await lines(store) == []
    assert checked(store.path).intact
    assert not head_path(store.path).exists()


async def test_a_job_that_is_undone_leaves_no_row_and_the_others_keep_theirs(logged: Store) -> None:
    def fails(tx: Transaction) -> None:
        audit.note_policy(tx, NOW_MS, "undone")
        tx.db.execute("INSERT INTO meta (key, value) VALUES ('written', 1)")
        raise Refused("no", code="conflict")

    def fails_before_it_writes(tx: Transaction) -> None:
        audit.note_policy(tx, NOW_MS, "undone too")
        raise Refused("no", code="conflict")

    def works(tx: Transaction) -> None:
        audit.note_policy(tx, NOW_MS, "done")

    futures = [logged.submit(job) for job in (works, fails, works, fails_before_it_writes, works)]
    for number, future in enumerate(futures):
        if number in (1, 3):
            with pytest.raises(Refused):
                await future
        else:
            await future
    await policies(logged, 1)
    assert [row[3] for row in await lines(logged)] == ["done", "done", "done", "tried"]
    assert logged.stats.reruns > 0
    assert checked(logged.path).intact


TEXTS = st.none() | st.text(st.characters(codec="utf-8"), max_size=20)


@settings(max_examples=25)
@given(entries=st.lists(st.tuples(st.integers(0, 2**53), TEXTS, TEXTS), min_size=1, max_size=5))
def test_the_hash_can_be_computed_with_any_json_library(
    entries: list[tuple[int, str | None, str | None]],
) -> None:
    chain, db = AuditChain(), sqlite3.connect(":memory:")
    db.executescript(
        "CREATE TABLE audit (n INTEGER PRIMARY KEY, line BLOB, hash BLOB); CREATE TABLE meta (key TEXT, value ANY)"
    )
    tx = Transaction(db, InMemoryState())
    for at_ms, reason, work_id in entries:
        chain.pending.append(AuditEntry(at_ms, "policy", "tried", reason, work_id=work_id))
    chain.flush(tx)
    before = bytes(32)
    for n, (at_ms, reason, work_id) in enumerate(entries, 1):
        document = [n, at_ms, "policy", "tried", reason, None, None, None, None, None, work_id, None, None]
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        before = hashlib.sha256(before + text.encode()).digest()
    assert chain.head == (len(entries), before)
    db.close()


# What cannot be done unseen

CHANGES: dict[str, tuple[Change, str]] = {
    "a letter of a row": (
        lambda db: db.execute(
            "UPDATE audit SET line = CAST(replace(CAST(line AS TEXT), 'tried', 'tired') AS BLOB) WHERE n = 5"
        ),
        "row 5 does not follow",
    ),
    "a row and its hash": (lambda db: forge(db, 5), "row 6 does not follow"),
    "a hash": (lambda db: db.execute("UPDATE audit SET hash = zeroblob(32) WHERE n = 7"), "row 7 does not follow"),
    "garbage in a row": (lambda db: db.execute("UPDATE audit SET line = x'ff00' WHERE n = 3"), "row 3 does not follow"),
    "one row removed": (lambda db: db.execute("DELETE FROM audit WHERE n = 4"), "row 4 is missing"),
    "rows removed": (lambda db: db.execute("DELETE FROM audit WHERE n IN (4, 5, 6)"), "rows 4 to 6 are missing"),
    "removed and renumbered": (lambda db: close_gap(db, 4), "row 4 does not follow"),
    "the first removed": (lambda db: db.execute("DELETE FROM audit WHERE n < 3"), "rows 1 to 2 are missing"),
    "the first removed as if pruned": (lambda db: pretend_pruned(db, 3), "begins after row 3"),
    "two exchanged": (lambda db: exchange(db, 4, 5), "row 4 does not follow"),
    "the newest cut off": (lambda db: db.execute("DELETE FROM audit WHERE n > 9"), "rows 10 to 12 are missing"),
    "cut off, and noted so": (lambda db: cut(db, 9), "the sidecar file names 12"),
    "all removed, and noted so": (lambda db: cut(db, 0), "the sidecar file names 12"),
    "one added": (lambda db: append(db), "the log ends with 13"),
    "the newest rewritten whole": (lambda db: rewrite(db, 12), "row 12 is not the one that the sidecar file names"),
}


def forge(db: sqlite3.Connection, n: int) -> None:
    """Changes row `n` and computes its hash anew."""
    (before,) = db.execute("SELECT hash FROM audit WHERE n = ?", (n - 1,)).fetchone()
    (line,) = db.execute("SELECT line FROM audit WHERE n = ?", (n,)).fetchone()
    line = line.replace(b"tried", b"tired")
    db.execute("UPDATE audit SET line = ?, hash = ? WHERE n = ?", (line, hashlib.sha256(before + line).digest(), n))


def close_gap(db: sqlite3.Connection, n: int) -> None:
    db.execute("DELETE FROM audit WHERE n = ?", (n,))
    for later in range(n + 1, ROWS + 1):
        (line,) = db.execute("SELECT line FROM audit WHERE n = ?", (later,)).fetchone()
        line = line.replace(b"[%d," % later, b"[%d," % (later - 1), 1)
        db.execute("UPDATE audit SET n = n - 1, line = ? WHERE n = ?", (line, later))


def note(db: sqlite3.Connection, key: str, n: int) -> None:
    row = db.execute("SELECT hash FROM audit WHERE n = ?", (n,)).fetchone()
    db.execute("UPDATE meta SET value = ? WHERE key = ?", (str(AuditHead(n, row[0] if row else bytes(32))), key))


def pretend_pruned(db: sqlite3.Connection, through: int) -> None:
    note(db, "audit_pruned", through)
    db.execute("DELETE FROM audit WHERE n <= ?", (through,))


def cut(db: sqlite3.Connection, last: int) -> None:
    db.execute("DELETE FROM audit WHERE n > ?", (last,))
    note(db, "audit_head", last)


def exchange(db: sqlite3.Connection, one: int, other: int) -> None:
    for old, new in ((one, 1000), (other, one), (1000, other)):
        db.execute("UPDATE audit SET n = ? WHERE n = ?", (new, old))


def append(db: sqlite3.Connection) -> None:
    line, before = db.execute("SELECT line, hash FROM audit WHERE n = ?", (ROWS,)).fetchone()
    line = line.replace(b"[12,", b"[13,", 1)
    db.execute("INSERT INTO audit VALUES (13, ?, ?)", (line, hashlib.sha256(before + line).digest()))


def rewrite(db: sqlite3.Connection, first: int) -> None:
    """From row `first` on another history, whole in itself, and noted as if it were ours."""
    for n in range(first, ROWS + 1):
        forge(db, n)
    note(db, "audit_head", ROWS)


@pytest.mark.parametrize("name", CHANGES)
async def test_changes_by_another_program_are_detected(path: Path, name: str) -> None:
    change, sentence = CHANGES[name]
    store = await Store.open(path, synchronous="normal")
    store.memory.audit.enabled = True
    await policies(store, ROWS)
    await store.close()
    assert checked(path) == AuditReport(rows=ROWS, last=str(read_head_file(path)))
    changed(path, change)
    report = checked(path)
    assert not report.intact
    assert any(sentence in finding for finding in report.findings), report.findings


async def test_a_rewritten_history_is_detected_only_by_a_head_kept_elsewhere(path: Path) -> None:
    store = await Store.open(path, synchronous="normal")
    store.memory.audit.enabled = True
    await policies(store, ROWS)
    kept = store.memory.audit.head
    await store.close()
    assert checked(path, kept).intact
    changed(path, lambda db: rewrite(db, 2))
    head_path(path).unlink()
    blind = checked(path)
    assert blind.intact
    assert "no sidecar file" in blind.notes[0]
    assert "the hash that you kept" in checked(path, kept).findings[0]
    assert not checked(path, AuditHead(999, bytes(32))).intact


async def test_a_head_stays_good_while_the_log_grows(logged: Store) -> None:
    await policies(logged, 5)
    kept = parse_head(str(logged.memory.audit.head))
    await policies(logged, 5)
    assert checked(logged.path, kept).intact
    assert not checked(logged.path, AuditHead(kept.n - 1, kept.hash)).intact


async def test_a_start_after_a_cut_reports_it_and_continues_the_chain(path: Path) -> None:
    store = await Store.open(path, synchronous="normal")
    store.memory.audit.enabled = True
    await policies(store, ROWS)
    await store.close()
    left = read_head_file(path)
    changed(path, lambda db: cut(db, 9))
    again = await Store.open(path, synchronous="normal")
    again.memory.audit.enabled = True
    await again.write(lambda tx: audit.note_start(tx, NOW_MS, "trust.mode=verify, no key"))
    assert [row[:5] for row in (await lines(again))[9:]] == [
        [10, NOW_MS, "policy", "started", "trust.mode=verify, no key"],
        [
            11,
            NOW_MS,
            "policy",
            "rows_missing",
            f"rows after 9, up to {left} in the sidecar file",
        ],
    ]
    await again.close()
    assert "row 11 says that rows were missing at a start" in checked(path).findings[0]


async def test_the_chain_continues_over_restarts(path: Path) -> None:
    for _ in range(3):
        store = await Store.open(path, synchronous="normal")
        store.memory.audit.enabled = True
        assert store.memory.audit.gap is None
        await policies(store, 4)
        await store.close()
    assert checked(path).rows == 12
    assert checked(path).intact


async def test_a_store_without_a_log_and_a_damaged_record_are_reported(path: Path, logged: Store) -> None:
    await logged.close()
    changed(path, lambda db: db.execute("UPDATE meta SET value = 'nonsense' WHERE key = 'audit_head'"))
    with pytest.raises(StoreDamaged):
        checked(path)
    changed(path, lambda db: db.execute("DROP TABLE audit"))
    with pytest.raises(StoreUnopenable, match="no audit log"):
        checked(path)


# Retention


async def test_a_pruned_log_is_intact_and_bounded(logged: Store) -> None:
    await policies(logged, 60)
    assert await sweep_audit(logged, 40, 10**9, NOW_MS) == 22
    report = checked(logged.path)
    assert (report.intact, report.pruned_through, report.rows) == (True, 22, 39)
    assert (await lines(logged))[-1][3] == "pruned"
    assert await sweep_audit(logged, 40, 10**9, NOW_MS) == 0
    kept_elsewhere = AuditHead(10, bytes(32))
    assert "was pruned since" in checked(logged.path, kept_elsewhere).findings[0]


async def test_rows_are_pruned_by_age_step_by_step(logged: Store) -> None:
    def many(tx: Transaction) -> None:
        for number in range(2 * AUDIT_STEP_ROWS + 10):
            audit.note_policy(tx, NOW_MS + number, "tried")

    await logged.write(many)
    later = NOW_MS + 2 * AUDIT_STEP_ROWS + 5  # milliseconds: five more than two steps are older
    assert await sweep_audit(logged, 10**6, 0, later) == 2 * AUDIT_STEP_ROWS + 5
    report = checked(logged.path)
    assert (report.intact, report.rows) == (True, 5 + 3)
    await policies(logged, 3, NOW_MS + 10**9)
    assert checked(logged.path).intact


async def test_a_slow_export_blocks_no_checkpoint(logged: Store) -> None:
    await many(logged, 2500)
    told: list[str] = []
    with open_audit_log(logged.path) as reader:
        export = reader.export(0, told.append)
        assert next(export).n == 1
        await policies(logged, 3)
        other = sqlite3.connect(logged.path)
        busy, *_ = other.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        other.close()
        assert busy == 0
        assert [row.n for row in export] == list(range(2, 2501))  # to the newest when it began
    assert told == []


async def test_an_export_reports_rows_pruned_meanwhile(logged: Store) -> None:
    await many(logged, 2500)
    told: list[str] = []
    with open_audit_log(logged.path) as reader:
        export = reader.export(10, told.append)
        numbers = [next(export).n]
        gone = await sweep_audit(logged, 300, 10**9, NOW_MS)
        numbers += [row.n for row in export]
    assert numbers == [*range(11, 1011), *range(gone + 1, 2501)]
    assert told == [f"rows 1011 to {gone} are missing: pruned meanwhile, unless `aghctl audit verify` says otherwise"]


async def many(store: Store, count: int) -> None:
    """So many rows at once."""

    def write(tx: Transaction) -> None:
        for number in range(count):
            audit.note_policy(tx, NOW_MS + number, "tried", f"number {number}")

    await store.write(write)


async def test_a_log_that_is_off_is_not_pruned(logged: Store) -> None:
    await policies(logged, 10)
    logged.memory.audit.enabled = False
    assert await sweep_audit(logged, 1, 0, NOW_MS + 10**9) == 0
    assert checked(logged.path).rows == 10


async def test_a_value_that_is_set_during_a_write_is_written_next(tmp_path: Path) -> None:
    def encode(value: int) -> bytes:
        if value == 1:
            file.set(2)
        return b"%d" % value

    with ThreadPoolExecutor(1) as executor:
        file = SidecarFile[int](tmp_path / "sidecar", executor, encode)
        file.set(1)
        file.close()
        assert file.path.read_bytes() == b"1"
        file.close()
    assert file.path.read_bytes() == b"2"


def test_heads_are_read_as_they_are_written() -> None:
    head = AuditHead(NOW, hashlib.sha256(b"x").digest())
    assert parse_head(str(head)) == head
    for text in ("", "12", "12:zz", f"x:{'0' * 64}", f"{'9' * 19}:{'0' * 64}", f"1:{'0' * 63}"):
        with pytest.raises(ValueError, match="NUMBER:HASH"):
            parse_head(text)
