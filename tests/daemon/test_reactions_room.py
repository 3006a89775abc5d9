"""Questions and ends of our own works reach the inbox, whatever else waits there."""

from pathlib import Path
from typing import Any

import msgspec

from aghbus.daemon.config.settings import InboxSettings
from aghbus.daemon.receive.inbox_admission import REACTION_PARTS, SENDER_PARTS, WORK_QUESTIONS
from aghbus.protocol.api.operations import Operations
from aghbus.protocol.api.queries import InboxQuery
from aghbus.protocol.api.works import WorkOpenRequest
from aghbus.store.engine.commit.state import Kept
from tests.support.receiving import Bench, bench

SMALL = InboxSettings(capacity=80)
PART = SMALL.capacity // REACTION_PARTS // SENDER_PARTS  # of one target
ASKS = {"state": "needs_input", "message": "which branch?"}
WORKS_ON = {"state": "working"}
ENDS = {"state": "completed", "result": {}}


async def opened(desk: Bench, target: str) -> dict[str, Any]:
    """The fields by which the messages of a work of our agent name it."""
    sent = await desk.parts.operations[Operations.open_work](WorkOpenRequest(to=target, text="do it"))
    return {"work_id": sent.work_id, "thread_id": sent.thread_id}


async def trace(desk: Bench, target: str, work: dict[str, Any], *bodies: dict[str, Any]) -> None:
    for body in bodies:
        await desk.offer(desk.say(target, kind="trace", body=body, **work))


async def unread(desk: Bench, target: str) -> list[str]:
    """The states that the unread traces of a target report, oldest first."""
    items = (await desk.parts.inbox.list_items(InboxQuery(limit=1000))).items
    traces = [item.message for item in items if (item.message.sender, item.message.kind) == (target, "trace")]
    return [msgspec.json.decode(message.envelope)["body"]["state"] for message in traces]


async def test_the_question_and_the_end_enter_an_inbox_that_others_fill(tmp_path: Path) -> None:
    async with bench(tmp_path, inbox=InboxSettings(capacity=1_000)) as desk:
        work = await opened(desk, "bob")
        for number in range(1_000):
            await desk.offer(desk.say(f"other{number % 10}"))
        desk.store.memory.kept = Kept(1 << 40, 1 << 40)
        await trace(desk, "bob", work, ASKS, ENDS)
        assert desk.counters["overload.inbox"] == 500
        assert await unread(desk, "bob") == ["needs_input", "completed"]


async def test_a_target_that_flips_leaves_few_questions_and_room_for_ends(tmp_path: Path) -> None:
    async with bench(tmp_path, inbox=SMALL) as desk:
        flipping, other = await opened(desk, "bob"), await opened(desk, "carol")
        await trace(desk, "bob", flipping, *[ASKS, WORKS_ON] * 200, ENDS)
        await trace(desk, "carol", other, ASKS, ENDS)
        assert await unread(desk, "bob") == [*["needs_input"] * WORK_QUESTIONS, "completed"]
        assert await unread(desk, "carol") == ["needs_input", "completed"]
        assert desk.counters["inbox.reactions_left_out"] == 200 - WORK_QUESTIONS
        (problem,) = desk.parts.limited.problems(desk.parts.clock.monotonic())
        assert problem.startswith("overload: questions or ends of own works are not put into the inbox, only stored")
        assert "contacts without a key; the last, as they call themselves: bob)" in problem


async def test_one_target_has_a_part_of_the_room_also_after_a_restart(tmp_path: Path) -> None:
    async with bench(tmp_path, inbox=SMALL) as desk:
        for _ in range(PART + 2):
            await trace(desk, "bob", await opened(desk, "bob"), ENDS)
        await desk.offer(desk.say("bob"))
        inbox = desk.store.memory.inbox
        before = [inbox.messages.senders, inbox.reactions.senders]
    async with bench(tmp_path, inbox=SMALL) as desk:
        inbox = desk.store.memory.inbox
        assert [inbox.messages.senders, inbox.reactions.senders] == before
        await trace(desk, "carol", await opened(desk, "carol"), ENDS)
        assert await unread(desk, "bob") == ["completed"] * PART
        assert await unread(desk, "carol") == ["completed"]
