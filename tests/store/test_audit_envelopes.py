"""The ledger and the stored envelopes: what another program changes is found, what retention removes is not a defect."""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aghbus.store.audit.pruning import sweep_audit
from aghbus.store.engine.commit.ledger import content_of
from aghbus.store.engine.commit.watermark import watermark_path
from aghbus.store.engine.database import Store
from aghbus.store.retention import RetentionPolicy, sweep
from aghbus.store.tables import inbox
from tests.support.auditing import changed, checked, exported, policies
from tests.support.makers import BOB, NOW, NOW_MS, US, receive, receiving, rows, say, sending, trace

EVERYTHING = RetentionPolicy(max_age=0, max_bytes=None)
LATER_MS = NOW_MS + 10_000
# Counted with the indexes of the log: not part of what the ledger proves.
COUNTED = {("flows", name) for name in ("messages", "first_ms", "last_ms", "last_seq")}


async def receive_together(store: Store, count: int, *, at: int = NOW) -> None:
    """So many messages in one commit, acked so that retention may remove them."""
    for future in [store.submit(receiving(say(), at=at)) for _ in range(count)]:
        await future


async def ack_all(store: Store) -> None:
    job = partial(inbox.lease_next, now_ms=NOW_MS, visibility_ms=60_000, lease_token="lease", ack=True)
    while await store.write(job) is not None:
        pass


async def varied(path: Path) -> None:
    """A closed store with messages of all kinds, several in one commit, some of one removed, some entries pruned."""
    store = await Store.open(path, synchronous="normal")
    await receive_together(store, 3)
    await policies(store, 2)
    await sweep_audit(store, 10**6, 0, NOW_MS + 1)
    await receive_together(store, 2, at=NOW - 10)
    futures = [store.submit(receiving(say(), at=at)) for at in (NOW - 10, NOW - 10, NOW + 100)]
    for future in futures:
        await future
    await ack_all(store)
    await sweep(store, RetentionPolicy(max_age=5, max_bytes=None), NOW_MS)
    await receive(store, say(work_id="work_one"))
    await store.write(sending(trace("completed", sender=US, to=BOB, work_id="work_one")))
    await receive(store, say(work_id="work_one"))
    await receive(store, say(direct=True))
    await policies(store, 1)
    await store.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "store.db"
    asyncio.run(varied(path))
    return path


@pytest.fixture
def copy(path: Path, template: Path) -> Path:
    put(path, template)
    return path


def put(path: Path, template: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    for left in path.parent.iterdir():
        left.unlink()
    for one in (path, watermark_path(path)):
        shutil.copy(template.with_name(one.name), one)


USED = {
    "ledger": "SELECT rowid, {} FROM ledger",
    "log": "SELECT rowid, {} FROM log WHERE seq > 3",  # entries before were pruned
    "flows": "SELECT rowid, {} FROM flows WHERE id IN (SELECT flow FROM log)",
    "verdicts": "SELECT rowid, {} FROM verdicts WHERE id IN (SELECT verdict FROM log)",
}
"""The rows of each table that the ledger covers."""


def test_the_template_has_what_the_changes_need(copy: Path) -> None:
    report = checked(copy)
    assert (report.findings, report.lost, report.notes) == ([], [], [])
    assert report.pruned_through > 0
    with sqlite3.connect(copy) as db:
        assert db.execute("SELECT count(*) FROM ledger WHERE removed IS NOT NULL").fetchone() == (1,)
        assert db.execute("SELECT count(*) FROM envelopes WHERE pair_a IS NOT NULL").fetchone() == (1,)
    outcomes = {(row["event"], row["outcome"]) for row in exported(copy)}
    assert {("removed", "removed"), ("receive", "kept"), ("reject", "rejected"), ("policy", "removed")} <= outcomes


def altered(value: Any, at: int, by: int) -> Any:
    """Another value of the same type: one bit, character or step away; of NULL something else."""
    if isinstance(value, int):
        return value ^ (1 << at % 40)
    if isinstance(value, bytes):
        at %= max(1, len(value))
        return bytes([*value[:at], (value[at] if value else 0) ^ by, *value[at + 1 :]])
    if isinstance(value, str):
        at %= max(1, len(value))
        return value[:at] + chr(ord(value[at]) ^ (by & 15 or 1)) + value[at + 1 :]
    return None


NUMBERS = st.integers(0, 2000)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=st.sampled_from(sorted(USED)), column=NUMBERS, row=NUMBERS, at=NUMBERS, by=st.integers(1, 255))
def test_any_single_changed_value_is_found(
    path: Path, template: Path, table: str, column: int, row: int, at: int, by: int
) -> None:
    put(path, template)
    with closing(sqlite3.connect(path)) as db, db:
        names = [one[1] for one in db.execute(f"PRAGMA table_info({table})") if (table, one[1]) not in COUNTED]
        name = names[column % len(names)]
        found = db.execute(USED[table].format(name)).fetchall()
        rowid, value = found[row % len(found)]
        after = other_than(value, at, by, nullable=name in ("content", "events", "removed"))
        db.execute(f"UPDATE OR REPLACE {table} SET {name} = ? WHERE rowid = ?", (after, rowid))
    report = checked(path)
    assert not report.intact, (table, name, rowid, value, after)


def other_than(value: Any, at: int, by: int, *, nullable: bool) -> Any:
    if value is None:
        return b"[]" if nullable else "x"
    return None if nullable and by % 4 == 0 else altered(value, at, by)


TEXT = "CAST(replace(raw, 'hello', 'hallo') AS BLOB)"
CHANGES = {
    "the bytes and their checksum": (f"UPDATE log SET raw = {TEXT}, checksum = checksum_of({TEXT})", "not as stored"),
    "the bytes": (f"UPDATE log SET raw = {TEXT}", "its columns are not those of its bytes"),
    "a verdict": ("UPDATE verdicts SET outcome = 'opened' WHERE outcome = 'rejected'", "not as stored"),
    "the trust": ("UPDATE verdicts SET trust = 'verified'", "not as stored"),
    "the place in the inbox": ("UPDATE verdicts SET inbox = 1 - inbox", "not as stored"),
    "the sender": ("UPDATE flows SET sender = 'eve'", "its columns are not those of its bytes"),
    "one removed": ("DELETE FROM log WHERE seq = (SELECT max(seq) FROM log)", "does not say that retention"),
    "an older one removed": (
        "DELETE FROM log WHERE seq = (SELECT seq FROM log ORDER BY seq LIMIT 1 OFFSET 3)",
        "missing",
    ),
    "one added after the end": (
        "UPDATE log SET seq = 1000 WHERE seq = (SELECT max(seq) FROM log)",
        "stored after the end of the ledger",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_envelopes_by_another_program_is_found(copy: Path, name: str) -> None:
    sql, sentence = CHANGES[name]
    changed(copy, lambda db: db.execute(sql))
    report = checked(copy)
    assert any(sentence in finding for finding in report.findings), report.findings


async def test_a_removed_envelope_among_others_of_its_commit_is_found(store: Store) -> None:
    await receive_together(store, 3)
    await store.write(lambda tx: tx.db.execute("DELETE FROM log WHERE seq = 2").rowcount)
    assert "envelope 2 is missing of entry 1, which has others" in checked(store.path).findings


async def test_a_chain_without_its_end_goes_on_and_is_found(path: Path) -> None:
    store = await Store.open(path, synchronous="normal")
    await receive_together(store, 3)
    await policies(store, 2)
    await store.close()
    changed(path, lambda db: db.execute("DELETE FROM ledger"))
    watermark_path(path).unlink()
    store = await Store.open(path, synchronous="normal")
    assert (await receive(store, say())).seq == 4
    await store.close()
    assert checked(path).findings == [
        "envelopes 1 to 4 of entry 1: not as stored; at least one was changed, added or removed"
    ]


async def test_a_forged_list_of_removed_envelopes_is_found(store: Store) -> None:
    """Another program removes an envelope as retention does, but it has no event in the ledger."""
    await receive_together(store, 3)
    entry = exported(store.path, entries=True)[0]
    assert content_of([tuple(record) for record in entry["records"]]).hex() == entry["content"]

    def forge(db: sqlite3.Connection) -> None:
        db.execute("UPDATE ledger SET removed = ? WHERE n = 1", (msgspec.json.encode(entry["records"][:1]),))
        db.execute("DELETE FROM log WHERE seq = 1")

    changed(store.path, forge)
    assert checked(store.path).findings == [
        "envelope 1 is missing, and the ledger does not say that retention removed any"
    ]


# Retention


@pytest.mark.parametrize("together", [1, 5, 70])
async def test_a_store_that_retention_emptied_verifies(store: Store, together: int) -> None:
    for _ in range(3):
        await receive_together(store, together)
    await ack_all(store)
    assert checked(store.path).envelopes == 3 * together
    swept = await sweep(store, EVERYTHING, LATER_MS)
    assert swept.envelopes == 3 * together
    report = checked(store.path)
    assert (report.findings, report.lost, report.envelopes) == ([], [], 0)
    assert await rows(store, "SELECT count(*) FROM ledger WHERE removed IS NOT NULL") == [(0,)]
    gone = [row["reason"] for row in exported(store.path) if row["event"] == "removed"]
    assert gone[0] == f"{together} envelopes, sequence 1 to {together}"


async def test_envelopes_of_a_commit_can_be_removed_one_after_another(store: Store) -> None:
    for at in range(5):
        store.submit(receiving(say(), at=NOW + 10 * at))
    await store.write(receiving(say(), at=NOW + 100))
    await ack_all(store)
    whole = exported(store.path, entries=True)[0]
    for at in range(5):
        await sweep(store, RetentionPolicy(max_age=5, max_bytes=None), NOW_MS + 10_000 * at + 6_000)
        report = checked(store.path)
        assert (report.findings, report.envelopes) == ([], 5 - at)
        assert exported(store.path, entries=True)[0] == whole  # the records are still known
        shown = [(row["seq"], row["digest"]) for row in exported(store.path) if row["event"] == "receive"]
        assert sorted(shown) == [(record[0], record[-1]) for record in whole["records"]]


async def test_pruned_links_do_not_need_their_envelopes(store: Store) -> None:
    await receive_together(store, 4)
    await ack_all(store)
    assert await sweep_audit(store, 10**6, 0, LATER_MS) > 0
    assert checked(store.path).intact
    await sweep(store, EVERYTHING, LATER_MS)
    await receive(store, say())
    report = checked(store.path)
    assert (report.findings, report.envelopes) == ([], 1)


async def test_many_links_between_two_removed_envelopes_are_found(store: Store) -> None:
    """Retention looks the entry of an envelope up by its sequence."""
    await receive_together(store, 2, at=NOW - 20)
    for number in range(40):
        await receive(store, say(work_id=f"work_{number}"))
        await policies(store, number % 3)
    await receive_together(store, 2, at=NOW - 20)
    await ack_all(store)
    await sweep(store, RetentionPolicy(max_age=10, max_bytes=None), NOW_MS)
    report = checked(store.path)
    assert (report.findings, report.envelopes) == ([], 40)
