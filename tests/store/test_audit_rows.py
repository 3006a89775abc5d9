"""The audit log: which events are in it, and that a changed, removed or moved entry is detected."""

import hashlib
import json
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aghbus.protocol.base.errors import Refused
from aghbus.store.audit import events as audit
from aghbus.store.audit.pruning import PRUNE_ROWS, sweep_audit
from aghbus.store.audit.reader import open_audit_log
from aghbus.store.audit.verify import AuditReport
from aghbus.store.engine.commit.ledger import Head, Ledger, as_pruned, entry_hash, parse_head
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.commit.watermark import CommitWatermark, WatermarkFile, read_watermark, watermark_path
from aghbus.store.engine.database import Store
from aghbus.store.engine.memory.trust import Rule
from aghbus.store.errors import StoreDamaged, StoreUnopenable
from tests.support.auditing import changed, checked, exported, policies
from tests.support.makers import BOB, EVE, NOW, NOW_MS, US, receive, say, sending, trace

Change = Callable[[sqlite3.Connection], object]
LINKS = 12


# What becomes a row


def events(store: Store) -> list[tuple[Any, ...]]:
    return [
        tuple(row[name] for name in ("event", "outcome", "reason", "sender", "kind")) for row in exported(store.path)
    ]


async def test_a_received_message_is_a_row_without_its_text(store: Store) -> None:
    envelope = say(text="a secret of mine", work_id="work_one")
    await receive(store, envelope)
    (row,) = exported(store.path)
    assert row == {
        "n": 1,
        "seq": 1,
        "at_ms": NOW_MS,
        "event": "receive",
        "outcome": "opened",
        "reason": None,
        "msg_id": envelope.id,
        "sender": BOB,
        "recipient": US,
        "channel": "builders",
        "kind": "say",
        "work_id": "work_one",
        "trust": "unverified",
        "digest": hashlib.sha256(envelope.raw).hexdigest(),
        "hash": store.memory.ledger.head.hash.hex(),
    }
    assert "secret" not in json.dumps(exported(store.path, entries=True))


async def test_lifecycle_rejection_is_a_reject_row_and_receipt_a_send_row(store: Store) -> None:
    await receive(store, say(work_id="work_one"))
    await store.write(sending(trace("completed", sender=US, to=BOB, work_id="work_one")))
    await receive(store, say(sender=EVE, work_id="work_one"))
    await receive(store, say(work_id="work_one"))
    assert events(store) == [
        ("receive", "opened", None, BOB, "say"),
        ("send", "advanced", None, US, "trace"),
        ("deliver", "acked", None, BOB, "say"),
        ("receive", "ignored", "actor_not_allowed", EVE, "say"),
        ("reject", "rejected", "work_closed", BOB, "say"),
        ("send", "unchanged", None, US, "receipt"),
        ("send", "again", "the peer referred to a work that has ended", US, "trace"),
    ]


async def test_a_sent_message_has_a_send_row_and_another_when_it_is_given_up(store: Store) -> None:
    envelope = say(sender=US, to=BOB)
    applied = await store.write(sending(envelope))
    await store.write(lambda tx: audit.note_outgoing(tx, NOW_MS + 5, applied.queued[0], "expired", "no answer"))
    sent, ended = exported(store.path)
    assert [(row["event"], row["outcome"], row["reason"]) for row in (sent, ended)] == [
        ("send", "kept", None),
        ("send", "expired", "no answer"),
    ]
    differing = {"n", "at_ms", "outcome", "reason", "hash"}
    assert {name for name in sent if sent[name] != ended[name]} == differing
    assert ended["digest"] == hashlib.sha256(envelope.raw).hexdigest()


async def test_refused_bytes_of_any_kind_are_a_row(store: Store) -> None:
    raw = b'{"id":"\\ud800'
    await store.write(
        lambda tx: audit.note_refused(tx, NOW_MS, raw, "malformed", envelope=None, msg_id="\ud800", sender="x" * 10_000)
    )
    (row,) = exported(store.path)
    assert (row["event"], row["outcome"], row["reason"], row["msg_id"]) == ("reject", "refused", "malformed", "\\ud800")
    assert len(row["sender"]) < 1000
    assert row["digest"] == hashlib.sha256(raw).hexdigest()


async def test_each_commit_is_one_link_and_nothing_else_counts_it(store: Store) -> None:
    futures = [store.submit(lambda tx: audit.note_policy(tx, NOW_MS, "tried")) for _ in range(10)]
    for future in futures:
        await future
    await store.write(lambda tx: tx.db.execute("INSERT INTO meta VALUES ('other', 1)").rowcount)
    assert await store.write(lambda tx: tx.db.execute("SELECT count(*) FROM meta").fetchone()[0])
    assert store.memory.ledger.head.n == store.stats.commits == 2
    assert checked(store.path).commits == 2


async def test_a_job_that_is_undone_leaves_no_row_and_the_others_keep_theirs(store: Store) -> None:
    def fails(tx: Transaction) -> None:
        audit.note_policy(tx, NOW_MS, "undone")
        tx.db.execute("INSERT INTO meta (key, value) VALUES ('written', 1)")
        raise Refused("no", code="conflict")

    def fails_before_it_writes(tx: Transaction) -> None:
        audit.note_policy(tx, NOW_MS, "undone too")
        raise Refused("no", code="conflict")

    def works(tx: Transaction) -> None:
        audit.note_policy(tx, NOW_MS, "done")

    futures = [store.submit(job) for job in (works, fails, works, fails_before_it_writes, works)]
    for number, future in enumerate(futures):
        if number in (1, 3):
            with pytest.raises(Refused):
                await future
        else:
            await future
    await policies(store, 1)
    assert [row["outcome"] for row in exported(store.path)] == ["done", "done", "done", "tried"]
    assert store.stats.reruns > 0
    assert checked(store.path).intact


TEXTS = st.none() | st.text(st.characters(codec="utf-8"), max_size=20)


@settings(max_examples=25)
@given(commits=st.lists(st.tuples(st.integers(0, 2**53), TEXTS, TEXTS), min_size=1, max_size=5))
def test_the_hash_can_be_computed_with_any_json_library(commits: list[tuple[int, str | None, str | None]]) -> None:
    ledger, db = Ledger(), sqlite3.connect(":memory:")
    db.execute("CREATE TABLE ledger (n INTEGER PRIMARY KEY, at_ms, last_seq, content, events, removed, hash)")
    before = bytes(32)
    for n, (at_ms, reason, state) in enumerate(commits, 1):
        record = (n, at_ms, "in", "say", "verified", "message", "opened", reason, None, state, None, None, "00")
        ledger.records.append(record)
        ledger.events.append((at_ms, "policy", "tried", reason))
        ledger.head = ledger.append(db, n)
        ledger.records.clear()
        ledger.events.clear()
        content = hashlib.sha256(compact([record])).hexdigest()
        line = compact([n, at_ms, n, content, [[at_ms, "policy", "tried", reason]]])
        before = hashlib.sha256(before + line).digest()
    assert ledger.head == (len(commits), before, len(commits))
    db.close()


def compact(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


# What cannot be done unseen

CHANGES: dict[str, tuple[Change, str]] = {
    "a letter of an event": (
        lambda db: db.execute(
            "UPDATE ledger SET events = CAST(replace(CAST(events AS TEXT), 'tried', 'tired') AS BLOB) WHERE n = 5"
        ),
        "entry 5 does not follow",
    ),
    "an entry and its hash": (lambda db: forge(db, 5), "entry 6 does not follow"),
    "a hash": (lambda db: db.execute("UPDATE ledger SET hash = zeroblob(32) WHERE n = 7"), "entry 7 does not follow"),
    "a time": (lambda db: db.execute("UPDATE ledger SET at_ms = at_ms + 1 WHERE n = 7"), "entry 7 does not follow"),
    "garbage in an entry": (
        lambda db: db.execute("UPDATE ledger SET events = x'ff00' WHERE n = 3"),
        "entry 3 does not follow",
    ),
    "one entry removed": (lambda db: db.execute("DELETE FROM ledger WHERE n = 4"), "entry 4 is missing"),
    "entries removed": (lambda db: db.execute("DELETE FROM ledger WHERE n IN (4, 5, 6)"), "entries 4 to 6 are missing"),
    "removed and renumbered": (lambda db: close_gap(db, 4), "entry 4 does not follow"),
    "the first removed": (lambda db: db.execute("DELETE FROM ledger WHERE n < 3"), "entries 1 to 2 are missing"),
    "the first removed as if pruned": (lambda db: pretend_pruned(db, 3), "begins after entry 3"),
    "two exchanged": (lambda db: exchange(db, 4, 5), "entry 4 does not follow"),
    "the newest cut off": (lambda db: db.execute("DELETE FROM ledger WHERE n > 9"), "entries 10 to 12 are missing"),
    "all removed": (lambda db: db.execute("DELETE FROM ledger"), "entries 1 to 12 are missing"),
    "the newest rewritten whole": (lambda db: rewrite(db, 12), "entry 12 is not the one that the .mark file names"),
}


def forge(db: sqlite3.Connection, n: int) -> None:
    """Changes entry `n` and computes its hash anew."""
    (before,) = db.execute("SELECT hash FROM ledger WHERE n = ?", (n - 1,)).fetchone()
    at_ms, last_seq, content, events = db.execute(
        "SELECT at_ms, last_seq, content, events FROM ledger WHERE n = ?", (n,)
    ).fetchone()
    events = events.replace(b"tried", b"tired")
    digest = entry_hash(before, n, at_ms, last_seq, content, events)
    db.execute("UPDATE ledger SET events = ?, hash = ? WHERE n = ?", (events, digest, n))


def close_gap(db: sqlite3.Connection, n: int) -> None:
    db.execute("DELETE FROM ledger WHERE n = ?", (n,))
    for later in range(n + 1, LINKS + 1):
        db.execute("UPDATE ledger SET n = n - 1 WHERE n = ?", (later,))


def pretend_pruned(db: sqlite3.Connection, through: int) -> None:
    n, digest, last_seq = db.execute("SELECT n, hash, last_seq FROM ledger WHERE n = ?", (through,)).fetchone()
    db.execute("INSERT INTO meta VALUES ('audit_pruned', ?)", (as_pruned(Head(n, digest, last_seq)),))
    db.execute("DELETE FROM ledger WHERE n <= ?", (through,))


def exchange(db: sqlite3.Connection, one: int, other: int) -> None:
    for old, new in ((one, 1000), (other, one), (1000, other)):
        db.execute("UPDATE ledger SET n = ? WHERE n = ?", (new, old))


def rewrite(db: sqlite3.Connection, first: int) -> None:
    """From entry `first` on another history, whole in itself."""
    for n in range(first, LINKS + 1):
        forge(db, n)


@pytest.mark.parametrize("name", CHANGES)
async def test_changes_by_another_program_are_detected(path: Path, name: str) -> None:
    change, sentence = CHANGES[name]
    store = await Store.open(path, synchronous="normal")
    await policies(store, LINKS)
    await store.close()
    watermark = read_watermark(path)
    assert watermark is not None
    assert checked(path) == AuditReport(commits=LINKS, last=str(watermark.head))
    changed(path, change)
    report = checked(path)
    assert not report.intact
    assert any(sentence in finding for finding in report.findings), report.findings


async def test_a_rewritten_history_is_detected_only_by_a_head_kept_elsewhere(path: Path) -> None:
    store = await Store.open(path, synchronous="normal")
    await policies(store, LINKS)
    kept = parse_head(str(store.memory.ledger.head))
    await store.close()
    assert checked(path, kept).intact
    changed(path, lambda db: rewrite(db, 2))
    watermark_path(path).unlink()
    blind = checked(path)
    assert blind.intact
    assert "no readable .mark file" in blind.notes[0]
    assert "the hash that you kept" in checked(path, kept).findings[0]
    assert not checked(path, (999, bytes(32))).intact


async def test_a_head_stays_good_while_the_log_grows(store: Store) -> None:
    await policies(store, 5)
    n, digest = parse_head(str(store.memory.ledger.head))
    await policies(store, 5)
    assert checked(store.path, (n, digest)).intact
    assert not checked(store.path, (n - 1, digest)).intact


async def test_a_start_after_a_cut_reports_it_and_continues_the_chain(path: Path) -> None:
    store = await Store.open(path, synchronous="normal")
    await policies(store, LINKS)
    await store.close()
    watermark = read_watermark(path)
    assert watermark is not None
    changed(path, lambda db: db.execute("DELETE FROM ledger WHERE n > 9"))
    again = await Store.open(path, synchronous="normal")
    await again.write(lambda tx: audit.note_start(tx, NOW_MS, "trust.mode=verify, no key"))
    assert [(row["n"], row["outcome"], row["reason"]) for row in exported(path)[9:]] == [
        (13, "commits_missing", f"commits 10 to 12: the .mark file named {watermark.head}"),
        (14, "started", "trust.mode=verify, no key"),
    ]
    await again.close()
    report = checked(path)
    assert report.findings == []
    assert "entry 13 says that commits were missing at a start" in report.lost[0]
    assert not report.intact


async def test_a_start_with_a_rewritten_chain_reports_it(path: Path) -> None:
    store = await Store.open(path, synchronous="normal")
    await policies(store, LINKS)
    await store.close()
    changed(path, lambda db: rewrite(db, 12))
    again = await Store.open(path, synchronous="normal")
    assert "commit 12 is not the one that the .mark file names" in again.problems[0]
    await again.write(lambda tx: audit.note_start(tx, NOW_MS, "trust.mode=verify, no key"))
    await again.close()
    assert exported(path)[-1]["outcome"] == "commits_missing"
    assert "entry 13 says that commits were missing at a start" in checked(path).lost[0]


async def test_the_chain_continues_over_restarts(path: Path) -> None:
    for _ in range(3):
        store = await Store.open(path, synchronous="normal")
        assert store.memory.ledger.gap is None
        await policies(store, 4)
        await store.close()
    assert checked(path).commits == 12
    assert checked(path).intact


async def test_a_store_without_a_log_and_a_damaged_record_are_reported(path: Path, store: Store) -> None:
    await store.close()
    changed(path, lambda db: db.execute("INSERT INTO meta VALUES ('audit_pruned', 'nonsense')"))
    with pytest.raises(StoreDamaged):
        checked(path)
    changed(path, lambda db: db.execute("DROP TABLE ledger"))
    with pytest.raises(StoreUnopenable, match="no audit log"):
        checked(path)


# Retention


async def test_a_pruned_log_is_intact_and_bounded(store: Store) -> None:
    await policies(store, 60)
    assert await sweep_audit(store, 40, 10**9, NOW_MS) == 22
    report = checked(store.path)
    assert (report.intact, report.pruned_through, report.commits) == (True, 22, 39)
    assert exported(store.path)[-1]["outcome"] == "pruned"
    assert await sweep_audit(store, 40, 10**9, NOW_MS) == 0
    kept_elsewhere = (10, bytes(32))
    assert "was pruned since" in checked(store.path, kept_elsewhere).findings[0]


async def test_trust_rules_of_pruned_entries_are_noted(store: Store) -> None:
    for name, at_ms in (("bob", NOW_MS), ("eve", NOW_MS + 60_000)):
        rule = Rule("pin", name, "sha256:" + "a" * 64, "first_use", at_ms, at_ms)

        def pin(tx: Transaction, rule: Rule = rule) -> None:
            tx.memory.trust.put(tx, rule)
            audit.note_policy(tx, rule.since_ms, "trust.first_use", f"pin {rule.subject}={rule.who}")

        await store.write(pin)
    assert checked(store.path).notes == []
    assert await sweep_audit(store, 10**6, 30, NOW_MS + 60_000) == 1
    report = checked(store.path)
    assert (report.intact, report.notes) == (
        True,
        ["1 trust rules are not in the ledger: they may be older than its start"],
    )
    changed(store.path, lambda db: db.execute("DELETE FROM trust_rules"))
    assert not checked(store.path).intact


async def test_all_links_can_be_pruned_by_age_and_the_chain_continues(path: Path) -> None:
    store = await Store.open(path, synchronous="normal")
    await policies(store, 10)
    assert await sweep_audit(store, 10**6, 0, NOW_MS + 10**9) == 10
    await store.close()
    store = await Store.open(path, synchronous="normal")
    await policies(store, 1, NOW_MS + 10**9)
    await store.close()
    report = checked(path)
    assert (report.intact, report.commits) == (True, 2)


async def test_links_are_pruned_by_age_step_by_step(store: Store) -> None:
    count = 2 * PRUNE_ROWS + 10
    await policies(store, count)
    later = NOW_MS + 2 * PRUNE_ROWS + 5  # milliseconds: five more than two steps are older
    assert await sweep_audit(store, 10**6, 0, later) == 2 * PRUNE_ROWS + 5
    report = checked(store.path)
    assert (report.intact, report.commits) == (True, 5 + 3)
    await policies(store, 3, NOW_MS + 10**9)
    assert checked(store.path).intact


async def test_a_slow_export_blocks_no_checkpoint(store: Store) -> None:
    await many(store, 2500)
    told: list[str] = []
    with open_audit_log(store.path) as reader:
        export = reader.export(0, told.append)
        assert next(export)["n"] == 1
        await policies(store, 3)
        other = sqlite3.connect(store.path)
        busy, *_ = other.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        other.close()
        assert busy == 0
        assert [row["n"] for row in export] == list(range(2, 2501))  # to the newest when it began
    assert told == []


async def test_an_export_reports_links_pruned_meanwhile(store: Store) -> None:
    await many(store, 2500)
    told: list[str] = []
    with open_audit_log(store.path) as reader:
        export = reader.export(10, told.append)
        numbers = [next(export)["n"]]
        gone = await sweep_audit(store, 300, 10**9, NOW_MS)
        numbers += [row["n"] for row in export]
    assert numbers == [*range(11, 1011), *range(gone + 1, 2501)]
    assert told == [
        f"entries 1011 to {gone} are missing: pruned meanwhile, unless `aghctl audit verify` says otherwise"
    ]


async def many(store: Store, count: int) -> None:
    """So many entries, which the writer would take long for."""

    def write(tx: Transaction) -> None:
        ledger = Ledger()
        ledger.load(tx.db)
        for number in range(count - 1):
            ledger.events.append((NOW_MS + number, "policy", "tried", f"number {number}"))
            ledger.head = ledger.append(tx.db, 0)
            ledger.events.clear()
        tx.memory.ledger.head = ledger.head
        audit.note_policy(tx, NOW_MS + count, "tried")

    await store.write(write)


async def test_closing_the_mark_file_writes_the_latest_value(path: Path) -> None:
    ledger = Ledger()
    path.parent.mkdir()
    with ThreadPoolExecutor(1) as executor:
        file = WatermarkFile(path, executor, 1, ledger)
        file.close()
        assert read_watermark(path) is None
        file.write_soon()
        assert file.pending
        ledger.head = Head(2, bytes(32), 2)
        file.close()
    assert read_watermark(path) == CommitWatermark(1, ledger.head)
    mark = watermark_path(path)
    assert mark.stat().st_mode & 0o777 == 0o600
    content = mark.read_bytes()
    for last in (content[-1] - 1, content[-1] + 1):  # of the checksum
        mark.write_bytes(content[:-1] + bytes([last % 256]))
        assert read_watermark(path) is None


def test_heads_are_read_as_they_are_written() -> None:
    head = Head(NOW, hashlib.sha256(b"x").digest(), 5)
    assert parse_head(str(head)) == head[:2]
    for text in ("", "12", "12:zz", f"x:{'0' * 64}", f"{'9' * 19}:{'0' * 64}", f"1:{'0' * 63}"):
        with pytest.raises(ValueError, match="NUMBER:HASH"):
            parse_head(text)
