"""What others leave in the store is bounded, ends by itself, and is removed by the operator; contacts do not pay for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aghbus.daemon.config.settings import StoreSettings, WorkSettings
from aghbus.daemon.receive import inbox_admission
from aghbus.daemon.receive.inbox_admission import OTHERS_WORKS_PARTS
from aghbus.daemon.send.deadlines import OTHERS_ACCEPT_WITHIN
from aghbus.protocol.agh.lifecycle import OPEN_STATES
from aghbus.protocol.api.inbox import InboxPurgeRequest
from aghbus.protocol.api.operations import Operations
from aghbus.store.tables import inbox
from aghbus.store.tables.works import lifecycle
from tests.support.makers import rows
from tests.support.natsutil import wait_until
from tests.support.receiving import FRIEND, OTHER, Bench, Settled, Stepped, bench

SMALL = StoreSettings(retention_size=16 << 20)
BYTES = SMALL.retention_size // OTHERS_WORKS_PARTS  # that the open works of others may have
LARGE = {"text": "x" * 300_000}
TAKEN = BYTES // 300_500  # openings with such a text


def held(desk: Bench) -> tuple[int, int]:
    memory = desk.store.memory
    return memory.others_works, memory.others_bytes


def opening(desk: Bench, sender: str, number: int, **fields: Any) -> dict[str, Any]:
    return desk.say(sender, work_id=f"work_{sender}_{number}", **fields)


async def read_all(desk: Bench) -> None:
    """The agent reads and acknowledges everything."""
    while await desk.store.write(lambda tx: inbox.lease_next(tx, 2**60, 1000, "lease", ack=True)) is not None:
        pass


async def states(desk: Bench) -> dict[str, str]:
    return dict(await rows(desk.store, "SELECT work_id, state FROM works"))


async def test_others_have_a_part_of_the_store_and_contacts_are_taken(tmp_path: Path) -> None:
    async with bench(tmp_path, store=SMALL) as desk:
        await desk.admit("plain", FRIEND.handle)
        for number in range(4 * TAKEN):
            settled = Settled()
            await desk.offer(opening(desk, f"name{number}", 0, body=LARGE), settled)
            assert settled.said == "ack"
            await read_all(desk)
        assert len(await states(desk)) == TAKEN == held(desk)[0]
        assert desk.counters["ignored.busy"] == 3 * TAKEN == desk.counters["receipts.unsent"]
        assert BYTES - 400_000 < held(desk)[1] <= BYTES
        for _ in range(5):
            await desk.offer(opening(desk, "plain", desk.store.memory.last_seq, body=LARGE))
            await desk.offer(desk.signed(FRIEND, work_id=f"work_{desk.store.memory.last_seq}", body=LARGE))
            await read_all(desk)
        assert len(await states(desk)) == TAKEN + 10
        (problem,) = desk.parts.limited.problems(desk.parts.clock.monotonic())
        assert "others have as many open works as they may" in problem
        assert f"{3 * TAKEN} of others" in problem


async def test_the_number_of_open_works_of_others_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_admission, "OTHERS_WORKS", 5)
    async with bench(tmp_path) as desk:
        for number in range(8):
            await desk.offer(opening(desk, f"name{number}", 0))
        assert held(desk)[0] == 5
        end = desk.say("name0", kind="trace", work_id="work_name0_0", body={"state": "canceled"})
        await desk.offer(end)
        await desk.offer(opening(desk, "name9", 0))
        assert held(desk)[0] == 5
        assert (await states(desk))["work_name9_0"] == "submitted"


async def test_messages_in_works_of_others_count_and_are_rejected_beyond_the_part(tmp_path: Path) -> None:
    async with bench(tmp_path, store=SMALL) as desk:
        await desk.offer(opening(desk, "bob", 0))
        progress = {"state": "working", "message": "x" * 300_000}
        for _ in range(TAKEN + 3):
            await desk.offer(desk.say("bob", kind="trace", work_id="work_bob_0", body=progress))
        assert desk.counters["overload.works"] == 3
        assert held(desk)[1] <= BYTES
        await desk.offer(desk.say("bob", kind="trace", work_id="work_bob_0", body={**progress, "state": "completed"}))
        assert (await states(desk), held(desk)) == ({"work_bob_0": "completed"}, (0, 0))


async def test_counts_are_the_same_after_a_restart_and_a_failed_job(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        await desk.admit("plain")
        for number, sender in enumerate(("bob", "carol", "plain", OTHER.handle)):
            document = opening(desk, sender, number)
            await desk.offer(OTHER(document) if sender == OTHER.handle else document)
        await desk.offer(desk.say("bob", work_id="work_bob_0"))
        await desk.offer(desk.say("carol", kind="trace", work_id="work_carol_1", body={"state": "failed"}))
        before = held(desk)
        sizes = "SELECT sum(length(e.raw)) FROM envelopes AS e JOIN works AS w USING (work_id) WHERE w.others_bytes > 0"
        assert before == (2, await desk.count(f"{sizes} AND w.state IN {OPEN_STATES}"))
        desk.store.memory.works.clear()  # as many others would do
        await desk.offer(desk.say("bob", work_id="work_bob_0"))
        assert held(desk)[1] > before[1]
        before = held(desk)
    async with bench(tmp_path) as desk:
        assert held(desk) == before

        def fail(tx: Any) -> None:
            tx.memory.others_works += 1
            raise ValueError

        with pytest.raises(ValueError):
            await desk.store.write(fail)
        assert held(desk) == before
        await desk.offer(desk.say("bob", kind="trace", work_id="work_bob_0", id="msg_end", body={"state": "canceled"}))
        assert held(desk)[0] == 1


async def test_what_changes_nothing_is_stored_of_contacts_only(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        await desk.admit("plain")
        ended = opening(desk, "bob", 0)
        await desk.offer(ended)
        await desk.offer(desk.say("bob", kind="trace", work_id="work_bob_0", body={"state": "canceled"}))
        void = [
            desk.say(sender, kind="trace", work_id="work_unknown", body={"state": "working"})
            for sender in ("bob", OTHER.handle, "plain")
        ]
        void[1] = OTHER(void[1])
        void.append(desk.say("bob", work_id="work_bob_0"))  # its work has ended
        for document in void:
            await desk.offer(document)
        assert await desk.senders() == ["bob", "bob", "plain"]
        assert len(desk.store.memory.dedup) == 6
        for document in void:
            await desk.offer(document)
        assert desk.counters["ignored.duplicate"] == 4
    async with bench(tmp_path) as desk:
        for document in void:
            await desk.offer(document)
        assert desk.counters["ignored.duplicate"] == 4
        assert await desk.senders() == ["bob", "bob", "plain"]


@asynccontextmanager
async def watching(desk: Bench) -> AsyncIterator[None]:
    """The task of the deadlines runs."""
    task = asyncio.create_task(desk.parts.deadlines.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.parametrize(
    ("configured", "within"), [(0, OTHERS_ACCEPT_WITHIN), (3600, 3600), (10**6, OTHERS_ACCEPT_WITHIN)]
)
async def test_works_of_others_end_when_nobody_accepts_them(tmp_path: Path, configured: int, within: int) -> None:
    """Also those whose initiator says that somebody works on them."""
    clock = Stepped()
    async with bench(tmp_path, clock, work=WorkSettings(accept_within=configured)) as desk:
        await desk.admit("plain")
        for sender in ("bob", "carol", "dan", "plain"):
            await desk.offer(opening(desk, sender, 0))
        progress = desk.say("carol", kind="trace", work_id="work_carol_0", body={"state": "working"})
        await desk.offer(progress)
        await accept(desk, "work_dan_0")
        due = dict(await rows(desk.store, "SELECT work_id, (due_ms - opened_ms) / 1000 FROM works"))
        assert due == {
            "work_bob_0": within,
            "work_carol_0": within,
            "work_dan_0": None,
            "work_plain_0": configured or None,
        }
        await desk.store.write(lambda tx: tx.db.execute("UPDATE works SET due_ms = 1 WHERE due_ms IS NOT NULL"))
        async with watching(desk):
            await wait_until(lambda: desk.counters["deadlines.passed"] >= 2, 20, "the end of both")
        found = await states(desk)
        assert (found["work_bob_0"], found["work_carol_0"], found["work_dan_0"]) == ("failed", "failed", "working")
        reasons = await rows(desk.store, "SELECT message FROM works WHERE state = 'failed' AND initiator <> 'plain'")
        assert reasons == [(f"not accepted within {within} s",)] * 2


async def accept(desk: Bench, work_id: str) -> None:
    """Our agent accepts a work."""

    def job(tx: Any) -> None:
        found = lifecycle.find(tx, work_id, None)
        assert found is not None
        desk.parts.closer.accept(tx, found.work)

    await desk.store.write(job)


async def test_purging_others_closes_works_whose_messages_were_read(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        await desk.admit("plain")
        for sender in ("bob", "carol", "dan", "plain"):
            await desk.offer(opening(desk, sender, 0))
        await desk.offer(desk.say("carol", kind="trace", work_id="work_carol_0", body={"state": "working"}))
        await read_all(desk)
        for sender in ("bob", "plain"):
            await desk.offer(opening(desk, sender, 1))
        await accept(desk, "work_dan_0")
        purge = desk.parts.operations[Operations.purge_inbox]
        answer = await purge(InboxPurgeRequest(others=True))
        assert (answer.messages, answer.works) == (1, 3)
        assert {work for work, state in (await states(desk)).items() if state == "failed"} == {
            "work_bob_0",
            "work_bob_1",
            "work_carol_0",
        }
        answer = await purge(InboxPurgeRequest(sender="plain"))
        assert (answer.messages, answer.works) == (1, 2)
        assert held(desk)[0] == 1  # dan's, which our agent has accepted
