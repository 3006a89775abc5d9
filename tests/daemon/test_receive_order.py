"""What is taken before its predecessor, and how messages are acknowledged."""

import json
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from aghbus.daemon.config.settings import InboxSettings
from aghbus.daemon.nats.link import InboundMessage
from aghbus.protocol.agh.delivery.acks import Ack, Acks, parse_ack
from aghbus.protocol.agh.delivery.order import AFTER, AFTER_SETTLED, settled_header
from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.identifiers import subject_for
from aghbus.store.apply_effects import Applied
from aghbus.store.engine.commit.transaction import Transaction
from tests.support.makers import make, rows, sending
from tests.support.publishing import Up
from tests.support.receiving import Bench, Settled, bench

REPLY = f"_INBOX.{'a' * 32}.ack.run.1"


class Answers(Up):
    """A link that keeps the acknowledgements published, and the receipts that are not stored."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Ack] = []
        self.lists: dict[str, list[tuple[str, Ack]]] = {}
        self.receipts: list[dict[str, Any]] = []

    def publish_all_nowait(self, messages: Iterable[tuple[str, bytes]]) -> bool:
        for subject, data in messages:
            if subject.startswith("agh."):
                self.receipts.append(json.loads(data))
                continue
            match parse_ack(data):
                case Ack() as ack:
                    self.answers.append(ack)
                case Acks(acks=acks):
                    self.lists[subject] = acks
        return True


@pytest.fixture
def link() -> Answers:
    return Answers()


@pytest.fixture
async def desk(tmp_path: Path, link: Answers) -> AsyncIterator[Bench]:
    async with bench(tmp_path, link=link, inbox=InboxSettings(capacity=12)) as made:  # three for each sender
        made.parts.presence.note_acknowledging("bob", True)
        yield made


def after(document: dict[str, Any]) -> dict[str, Any]:
    """The `ext` of a message that follows `document`."""
    return {AFTER: {"id": document["id"], "expires_at": document["ts"] + 100}}


def digest(document: dict[str, Any]) -> str:
    return parse(json.dumps(document).encode(), document["ts"]).digest


async def bodies(desk: Bench) -> list[str]:
    rows = await desk.store.reader.execute_fetchall("SELECT msg_id FROM envelopes WHERE direction = 'in' ORDER BY seq")
    return [row[0] for row in rows]


async def test_a_message_is_not_taken_before_its_predecessor(desk: Bench, link: Answers) -> None:
    first = desk.say("bob")
    second = desk.say("bob", ext=after(first))
    settled = Settled()
    await desk.offer(second, settled, REPLY)
    assert (settled.said, link.answers, await bodies(desk)) == ("ack", [], [])
    assert desk.counters["receive.early"] == 1
    assert desk.counters["overload"] == 0
    await desk.offer(first, reply=REPLY)
    await desk.offer(second, settled, REPLY)
    assert await bodies(desk) == [first["id"], second["id"]]
    assert [(ack.id, ack.outcome) for ack in link.answers] == [(first["id"], "committed"), (second["id"], "committed")]


async def test_a_predecessor_in_the_same_batch_counts(desk: Bench) -> None:
    first = desk.say("bob")
    second = desk.say("bob", ext=after(first))
    desk.take(first, second)
    await desk.commit()
    assert await bodies(desk) == [first["id"], second["id"]]


async def test_the_predecessor_of_another_sender_does_not_count(desk: Bench) -> None:
    first = desk.say("eve")
    await desk.offer(first)
    await desk.offer(desk.say("bob", ext=after(first)))
    assert await bodies(desk) == [first["id"]]


async def test_acks_of_one_commit_are_batched_per_list_capable_sender(desk: Bench, link: Answers) -> None:
    lists, others = f"_INBOX.{'a' * 32}.ack.list.run", f"_INBOX.{'a' * 32}.ack.lists.run"
    sent = [desk.say(sender) for sender in ("bob", "bob", "eve", "eve", "zoe", "zoe")]
    inboxes = (lists, lists, lists, lists, others, others)
    for number, (document, inbox) in enumerate(zip(sent, inboxes, strict=True)):
        desk.take(document, reply=f"{inbox}.{number}")
    await desk.commit()
    acks = [Ack(document["id"], "committed", None, digest(document)) for document in sent]
    assert link.lists == {
        f"{lists}.0": [("0", acks[0]), ("1", acks[1])],
        f"{lists}.2": [("2", acks[2]), ("3", acks[3])],
    }
    assert link.answers == acks[4:]
    assert desk.counters["acks.sent"] == 6


async def test_a_settled_predecessor_is_not_waited_for(desk: Bench) -> None:
    first = desk.say("bob")
    second = desk.say("bob", ext=after(first))
    header = settled_header(second["id"], first["id"], sender="bob", to="ops", signer=None)
    subject = subject_for("ws_local", "default", "ops")
    desk.intake.offer(InboundMessage(subject, json.dumps(second).encode(), "", {AFTER_SETTLED: header}))
    await desk.commit()
    assert await bodies(desk) == [second["id"]]


async def test_what_follows_a_message_that_found_no_room_waits_for_it(desk: Bench) -> None:
    documents: list[dict[str, Any]] = []
    for _ in range(4):
        documents.append(desk.say("bob", ext=after(documents[-1]) if documents else {}))
    end = desk.say("bob", ext=after(documents[-1]), kind="trace", work_id="work_1", body={"state": "completed"})
    desk.take(*documents, end)
    await desk.commit()
    assert await bodies(desk) == [document["id"] for document in documents[:3]]
    assert (desk.counters["overload.inbox"], desk.counters["receive.early"]) == (1, 1)


async def test_what_was_committed_without_effect_is_refused_with_its_reason(desk: Bench, link: Answers) -> None:
    late = desk.say("bob", kind="trace", work_id="work_1", body={"state": "working"})
    await desk.offer(late, reply=REPLY)
    await desk.offer(late, reply=REPLY)
    assert link.answers == [Ack(late["id"], "refused", "not_found", digest(late))] * 2


async def test_opening_with_foreign_work_id_is_refused_also_on_repeat(desk: Bench, link: Answers) -> None:
    taken = desk.say("bob", work_id="work_1")
    await desk.offer(taken, reply=REPLY)
    late = desk.say("eve", work_id="work_1", thread_id=taken["thread_id"])
    await desk.offer(late, reply=REPLY)
    await desk.offer(late, reply=REPLY)
    refused = Ack(late["id"], "refused", "actor_not_allowed", digest(late))
    assert link.answers == [Ack(taken["id"], "committed", None, digest(taken)), refused, refused]


async def test_duplicate_gets_outcome_and_digest_of_the_first_copy(desk: Bench, link: Answers) -> None:
    first = desk.say("bob")
    other = {**first, "body": {"text": "something else"}}
    await desk.offer(first, reply=REPLY)
    await desk.offer(other, reply=REPLY)
    assert link.answers == [Ack(first["id"], "committed", None, digest(first))] * 2
    assert digest(other) != digest(first)


def own(desk: Bench, **fields: Any) -> Callable[[Transaction], Applied]:
    """The job that queues a say of ours to bob in the thread of `Bench.say`."""
    return sending(
        make(
            "say",
            {"text": "go"},
            sender="ops",
            to="bob",
            workspace_id="ws_local",
            channel="default",
            ts=desk.parts.clock.seconds(),
            **fields,
        )
    )


async def test_a_receipt_that_is_not_stored_names_no_predecessor(desk: Bench, link: Answers) -> None:
    """Neither the answer to a copy, nor the one to a peer that is no contact."""
    await desk.store.write(own(desk))
    opening = desk.say("bob", work_id="work_1")
    stale = desk.say("bob", work_id="work_2", ts=1_700_000_000)
    for document in (opening, opening, stale):
        await desk.offer(document)
    assert [(one["body"]["status"], one.get("ext")) for one in link.receipts] == [
        ("duplicate", None),
        ("expired", None),
    ]


async def test_what_follows_a_refused_opening_is_given_up_with_it(desk: Bench) -> None:
    await desk.admit("bob")
    places = [{"work_id": "work_1"}, {"work_id": "work_1"}, {"work_id": "work_2"}, {"work_id": "work_1"}]
    for place in places:
        await desk.store.write(own(desk, **place))
    (opening_id,) = await desk.store.write(lambda tx: tx.db.execute("SELECT msg_id FROM envelopes").fetchone())
    body = {"for_id": opening_id, "status": "rejected", "reason_code": "verification_failed"}
    await desk.offer(desk.say("bob", kind="receipt", work_id="work_1", body=body))
    sql = "SELECT o.state, o.detail FROM outbox AS o JOIN envelopes AS e ON e.seq = o.seq WHERE e.kind = 'say' ORDER BY o.seq"
    dead = ("dead", "its work was not opened: by a receipt: verification_failed")
    refused = ("refused", "by a receipt: verification_failed")
    assert await rows(desk.store, sql) == [refused, dead, ("queued", None), dead]


async def test_a_duplicate_whose_first_copy_was_removed_is_refused(desk: Bench, link: Answers) -> None:
    first = desk.say("bob")
    await desk.offer(first)
    await desk.store.write(lambda tx: tx.db.execute("DELETE FROM log"))
    await desk.offer(first, reply=REPLY)
    assert link.answers == [Ack(first["id"], "refused", "duplicate", digest(first))]
