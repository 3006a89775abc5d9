"""The inbox has a share for each sender and for each lane, in messages and in bytes."""

from pathlib import Path

import pytest

from aghbus.daemon.config.settings import INBOX_BYTES_MIN, InboxSettings, StoreSettings
from aghbus.store.engine.commit.state import Kept
from aghbus.store.tables import inbox
from tests.support.makers import NOW_MS
from tests.support.receiving import FRIEND, Bench, Settled, Still, bench

CAPACITY = 40  # a quarter is 10
LARGE = "x" * 250_000  # of characters in a message
MIB = 1 << 20


async def fill(desk: Bench, names: int, count: int, **fields: object) -> None:
    """So many new names send so many messages each."""
    for name in range(names):
        for _ in range(count):
            await desk.offer(desk.say(f"peer{name}", **fields))


def waiting(desk: Bench) -> dict[str, int]:
    return {sender: messages for sender, (messages, _) in desk.store.memory.inbox.messages.senders.items()}


def problems(desk: Bench) -> list[str]:
    return list(desk.parts.limited.problems(desk.parts.clock.monotonic()))


async def test_one_sender_has_a_quarter_and_others_find_room(tmp_path: Path) -> None:
    async with bench(tmp_path, inbox=InboxSettings(capacity=CAPACITY)) as desk:
        settled = Settled()
        for _ in range(CAPACITY):
            await desk.offer(desk.say("bob"), settled)
        await desk.offer(desk.say("carol"))
        assert waiting(desk) == {"bob": CAPACITY // 4, "carol": 1}
        assert settled.said == "ack"
        assert desk.counters["overload.inbox"] == desk.counters["overload"] == CAPACITY - CAPACITY // 4
        (problem,) = problems(desk)
        assert "messages are rejected because a quarter of the inbox holds unread messages of one sender" in problem
        assert problem.endswith("; the last, as they call themselves: bob)")


async def test_an_inbox_for_one_message_takes_one_of_an_unknown_sender(tmp_path: Path) -> None:
    async with bench(tmp_path, inbox=InboxSettings(capacity=1)) as desk:
        await fill(desk, 2, 2)
        assert waiting(desk) == {"peer0": 1}


async def test_a_sender_has_room_again_when_the_agent_reads(tmp_path: Path) -> None:
    async with bench(tmp_path, inbox=InboxSettings(capacity=CAPACITY)) as desk:
        await fill(desk, 1, CAPACITY)
        await desk.store.write(lambda tx: inbox.lease_next(tx, NOW_MS, 1000, "lease", ack=True))
        await fill(desk, 1, 2)
        assert waiting(desk) == {"peer0": CAPACITY // 4}
        assert len(await desk.senders()) == CAPACITY // 4 + 1


async def test_one_sender_has_a_quarter_of_the_bytes(tmp_path: Path) -> None:
    async with bench(tmp_path, inbox=InboxSettings(max_bytes=INBOX_BYTES_MIN)) as desk:
        await fill(desk, 1, 8, body={"text": LARGE})
        await desk.offer(desk.say("carol"))
        assert waiting(desk) == {"peer0": 4, "carol": 1}
        assert desk.store.memory.inbox.messages.size <= INBOX_BYTES_MIN // 2


async def test_half_of_the_store_is_a_bound_too(tmp_path: Path) -> None:
    async with bench(tmp_path, store=StoreSettings(retention_size=16 << 20)) as desk:
        await fill(desk, 1, 12, body={"text": LARGE})
        assert waiting(desk) == {"peer0": 8}  # 2 MiB, a quarter of 8 MiB


async def test_others_fill_half_the_inbox_and_plain_contacts_three_quarters(tmp_path: Path) -> None:
    async with bench(tmp_path, inbox=InboxSettings(capacity=CAPACITY)) as desk:
        await desk.admit("known", FRIEND.handle, *(f"known{n}" for n in range(20)))
        await fill(desk, CAPACITY, 1)
        assert sum(waiting(desk).values()) == CAPACITY // 2
        for number in range(20):
            await desk.offer(desk.say(f"known{number}"))
        assert sum(waiting(desk).values()) == CAPACITY * 3 // 4
        for _ in range(CAPACITY):
            await desk.offer(desk.signed(FRIEND))
        assert waiting(desk)[FRIEND.handle] == CAPACITY // 4
        assert sum(waiting(desk).values()) == CAPACITY
        assert [problem.partition("because ")[2].partition(" (")[0] for problem in problems(desk)] == [
            "the inbox is half full, and takes messages of contacts only",
            "the inbox is three quarters full, and takes only messages of contacts with a key",
            "the inbox is full",
        ]


async def test_shares_are_the_same_after_a_restart(tmp_path: Path) -> None:
    async with bench(tmp_path, inbox=InboxSettings(capacity=CAPACITY)) as desk:
        await fill(desk, 2, CAPACITY)
        before = desk.store.memory.inbox.messages.senders
    async with bench(tmp_path, inbox=InboxSettings(capacity=CAPACITY)) as desk:
        assert desk.store.memory.inbox.messages.senders == before
        await fill(desk, 2, 1)
        assert desk.store.memory.inbox.messages.senders == before


@pytest.mark.parametrize(
    ("kept", "taken"),
    [
        (Kept(MIB, 0), [FRIEND.handle, "plain", "carol"]),  # other tables are too large
        (Kept(0, 300 * MIB), [FRIEND.handle, "plain"]),
        (Kept(400 * MIB, 0), [FRIEND.handle]),
        (Kept(513 * MIB, 0), []),
    ],
)
async def test_a_store_over_its_bound_refuses_others_first(tmp_path: Path, kept: Kept, taken: list[str]) -> None:
    async with bench(tmp_path) as desk:
        await desk.admit("plain", FRIEND.handle)
        desk.store.memory.kept = kept
        for document in (desk.signed(FRIEND), desk.say("plain"), desk.say("carol")):
            await desk.offer(document)
        assert await desk.senders() == taken
        assert desk.counters["overload.inbox"] == len(problems(desk)) == 3 - len(taken)
        assert all("store" in problem for problem in problems(desk))
        assert desk.counters.rejected["inbox", "contact"] == (FRIEND.handle not in taken)


async def test_a_store_over_its_bound_takes_messages_that_end_works(tmp_path: Path) -> None:
    async with bench(tmp_path, Still()) as desk:
        opening = desk.say("bob", work_id="work_1")
        await desk.offer(opening)
        desk.store.memory.kept = Kept(0, 300 * MIB)
        more = desk.say("bob", work_id="work_1")
        end = desk.say("bob", kind="receipt", work_id="work_1", body={"for_id": opening["id"], "status": "canceled"})
        for document in (more, end):
            await desk.offer(document)
        assert await desk.senders() == ["bob", "bob"]
        assert await desk.count("SELECT count(*) FROM works WHERE state = 'canceled'") == 1
        (problem,) = problems(desk)
        assert "others may not add to what the store has to keep" in problem
        assert problem.endswith(
            "(in 0 s: 1 of others, in the lane that they share; the last, as they call themselves: bob)"
        )
