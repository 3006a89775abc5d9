"""The rows of one envelope: envelope, work, history, room, inbox and outbox are stored together or not at all."""

import asyncio
from functools import partial

import pytest

from aghbus.protocol.agh.capability_digest import capability_digest
from aghbus.protocol.agh.effects import Queue
from aghbus.protocol.agh.errors import Expired
from aghbus.protocol.agh.receipt_target import ReceiptTarget
from aghbus.protocol.agh.receive import refuse
from aghbus.protocol.api.queries import WorksQuery
from aghbus.protocol.base.errors import Refused
from aghbus.store.apply_effects import Application, Applied, load_receipt_state, load_state
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.errors import InboxFull
from aghbus.store.tables import outbox, retry, rooms
from aghbus.store.tables.works import reads
from tests.support.makers import (
    BOB,
    CHANNEL,
    EVE,
    NOW,
    NOW_MS,
    US,
    WORKSPACE,
    inbox_states,
    make,
    receipt,
    receive,
    receiver,
    receiving,
    rows,
    say,
    sending,
    trace,
)

OPAQUE = "direct_" + "ab" * 16


async def outbox_states(store: Store) -> list[tuple[str, str]]:
    sql = "SELECT e.msg_id, o.state FROM outbox o JOIN envelopes e USING (seq) ORDER BY seq"
    return [(row[0], row[1]) for row in await rows(store, sql)]


async def test_a_message_is_stored_as_received_and_put_into_the_inbox(store: Store) -> None:
    envelope = say(ext={"x.custom": [1, {"deep": None}]}, trace_id="trace-1")
    applied = await receive(store, envelope)
    assert applied.delivered
    assert applied.queued == ()
    assert (applied.before, applied.after) == (None, None)
    found = await rows(store, "SELECT seq, direction, kind, sender, recipient, container, trust, raw FROM envelopes")
    assert found == [(applied.seq, "in", "say", BOB, US, "thread_one", "unverified", envelope.raw)]
    assert await inbox_states(store) == {applied.seq: "ready"}


async def test_a_work_is_opened_moved_and_ended(store: Store) -> None:
    opening = say(work_id="work_a", text="please do " + "x" * 300)
    opened = await receive(store, opening)
    assert (opened.before, opened.after and opened.after.state) == (None, "submitted")
    accepted = receipt("accepted", opening.id, sender=US, to=BOB, work_id="work_a")
    done = trace("completed", sender=US, to=BOB, work_id="work_a", message="ready", result={"passed": True})
    await store.write(sending(accepted))
    applied = await store.write(sending(done))
    assert applied.before is not None
    assert applied.before.state == "working"
    assert applied.after is not None
    assert (applied.after.state, applied.after.terminal_id, applied.after.terminal_sender) == ("completed", done.id, US)

    detail = await reads.work(store.reader, "work_a")
    assert detail is not None
    assert detail.work.state == "completed"
    assert detail.work.role == "target"
    assert detail.work.text == "please do " + "x" * 189 + "…"
    assert detail.work.message == "ready"
    assert detail.work.result == {"passed": True}
    assert detail.work.last_seq == applied.seq
    assert [(step.id, step.event, step.actor, step.outcome, step.before, step.after) for step in detail.history] == [
        (opening.id, "message", BOB, "opened", None, "submitted"),
        (accepted.id, "receipt:accepted", US, "advanced", "submitted", "working"),
        (done.id, "trace:completed", US, "advanced", "working", "completed"),
    ]
    assert detail.history[-1].result == {"passed": True}
    assert [state for _, state in await outbox_states(store)] == ["queued", "queued"]


async def test_the_stored_state_is_the_same_after_a_restart(store: Store) -> None:
    opening = say(work_id="work_a", direct=True)
    await receive(store, opening)
    await store.write(sending(trace("needs_input", sender=US, to=BOB, direct=True, work_id="work_a")))
    probe = say(work_id="work_a", direct=True)
    before = await store.write(lambda tx: (load_state(tx, probe, US), load_state(tx, opening, US)))
    await store.close()
    again = await Store.open(store.path)
    try:
        after = await again.write(lambda tx: (load_state(tx, probe, US), load_state(tx, opening, US)))
    finally:
        await again.close()
    assert after == before
    assert [view.duplicate for view in after] == [False, True]
    assert after[0].work is not None
    assert after[0].work.state == "needs_input"
    assert after[0].work.advanced
    assert after[0].room is not None
    assert after[0].room.authoritative


async def test_a_refused_step_is_stored_with_its_reason_and_changes_no_work(store: Store) -> None:
    await receive(store, say(work_id="work_a"))
    applied = await receive(store, trace("completed", sender=EVE, work_id="work_a"))
    sql = "SELECT outcome, reason, state_before, state_after FROM envelopes WHERE seq = ?"
    assert await rows(store, sql, applied.seq) == [("ignored", "actor_not_allowed", "submitted", "submitted")]
    detail = await reads.work(store.reader, "work_a")
    assert detail is not None
    assert detail.work.state == "submitted"
    assert len(detail.history) == 1


async def test_a_duplicate_is_answered_and_stores_nothing_but_the_answer(store: Store) -> None:
    opening = say(work_id="work_a")
    await receive(store, opening)
    applied = await receive(store, opening)
    assert applied.seq is None
    assert not applied.delivered
    assert len(applied.queued) == 1
    sql = "SELECT direction, kind, recipient, event, state_after FROM envelopes ORDER BY seq"
    assert (await rows(store, sql))[1:] == [("out", "receipt", BOB, "receipt:duplicate", "submitted")]
    assert len(await inbox_states(store)) == 1


async def test_message_to_closed_work_requeues_terminal_message_first(store: Store) -> None:
    await receive(store, say(work_id="work_a"))
    done = trace("completed", sender=US, to=BOB, work_id="work_a")
    sent = await store.write(sending(done))
    await store.write(
        lambda tx: retry.published(tx, [retry.RetrySchedule(seq, None) for seq in list(sent.queued)], NOW_MS)
    )
    applied = await receive(store, say(work_id="work_a"))
    assert applied.queued[0] == sent.seq
    assert len(applied.queued) == 2
    going = await outbox.queued(store.reader, 0, 10)
    assert [row.seq for row in going] == list(applied.queued)
    assert going[0].raw == done.raw
    assert going[0].attempts == 1


async def test_a_queued_message_has_its_subject_and_expiry(store: Store) -> None:
    envelope = say(sender=US, to=None, expires_at=NOW + 99)
    applied = await store.write(sending(envelope))
    (row,) = await outbox.queued(store.reader, 0, 10)
    assert row.seq == applied.seq
    assert row.subject == f"agh.network.v0.{WORKSPACE}.{CHANNEL}.broadcast"
    assert (row.raw, row.message_id, row.sender, row.expires_at) == (envelope.raw, envelope.id, US, NOW + 99)


async def test_a_full_inbox_leaves_no_trace(store: Store) -> None:
    await receive(store, say(), capacity=1)
    late = say(work_id="work_b")
    jobs = [store.submit(receiving(late, capacity=1)), store.submit(receiving(say(), capacity=2))]
    full, fits = await asyncio.gather(*jobs, return_exceptions=True)
    assert isinstance(full, InboxFull)
    assert isinstance(fits, tuple)
    assert store.stats.reruns == 0  # it was refused before anything was written
    assert await rows(store, "SELECT count(*) FROM envelopes") == [(2,)]
    assert await rows(store, "SELECT count(*) FROM works") == [(0,)]
    view = await store.write(lambda tx: load_state(tx, late, US))
    assert not view.duplicate  # the sender's retry finds the door open
    assert (await receive(store, late, capacity=5)).delivered


async def test_refused_steps_need_no_room_in_the_inbox(store: Store) -> None:
    await receive(store, say(work_id="work_a"), capacity=1)
    applied = await receive(store, trace("working", work_id="work_unknown"), capacity=1)
    assert applied.seq is not None


async def test_a_direct_room_is_bound_and_a_takeover_keeps_them_apart(store: Store) -> None:
    await receive(store, say(sender=BOB, direct=True, container=OPAQUE))
    bound = await store.write(lambda tx: rooms.bound(tx, WORKSPACE, CHANNEL, OPAQUE))
    assert bound is not None
    assert bound.pair == (BOB, US)
    assert not bound.authoritative
    taken = type(bound)((EVE, US), authoritative=True)
    await store.write(lambda tx: rooms.bind(tx, WORKSPACE, CHANNEL, OPAQUE, taken))
    assert await store.write(lambda tx: rooms.bound(tx, WORKSPACE, CHANNEL, OPAQUE)) == taken
    directs = await rooms.directs(store.reader, self_id=US)
    assert {(room.peer, room.messages, room.derived) for room in directs} == {(BOB, 1, False), (EVE, 0, True)}
    await store.write(lambda tx: rooms.bind(tx, WORKSPACE, CHANNEL, OPAQUE, bound))
    assert await store.write(lambda tx: rooms.bound(tx, WORKSPACE, CHANNEL, OPAQUE)) == bound


async def test_threads_count_their_messages(store: Store) -> None:
    await receive(store, say(container="thread_one"))
    await receive(store, say(container="thread_two"), at=NOW + 5)
    last = await receive(store, say(container="thread_one"), at=NOW + 9)
    threads = await rooms.threads(store.reader)
    assert [(thread.thread_id, thread.messages) for thread in threads] == [("thread_one", 2), ("thread_two", 1)]
    assert (threads[0].first_ms, threads[0].last_ms, threads[0].last_seq) == (NOW_MS, NOW_MS + 9000, last.seq)
    assert await rooms.threads(store.reader, channel="elsewhere") == []


async def test_observed_traffic_is_kept_and_never_delivered(store: Store) -> None:
    applied = await receive(store, say(sender=BOB, to=EVE, work_id="work_o"), observe=True)
    assert not applied.delivered
    assert applied.queued == ()
    (work,) = (await reads.works(store.reader, WorksQuery())).works
    assert work.role == "observer"
    assert await rows(store, "SELECT direction FROM envelopes") == [("observed",)]


async def test_a_message_to_the_own_id_is_refused_without_an_answer(store: Store) -> None:
    await receive(store, say(work_id="work_a"))
    await store.write(sending(trace("completed", sender=US, to=BOB, work_id="work_a")))
    with pytest.raises(Refused) as caught:
        await store.write(sending(trace("working", sender=US, to=BOB, work_id="work_a")))
    assert caught.value.error_code == "work_closed"
    assert await rows(store, "SELECT count(*) FROM outbox") == [(1,)]


async def test_our_own_echo_is_known_as_ours(store: Store) -> None:
    sent = say(sender=US, to=None)
    await store.write(sending(sent))
    outsider = say(sender=US, to=None)
    echo, conflict = await store.write(lambda tx: (load_state(tx, sent, US), load_state(tx, outsider, US)))
    assert (echo.sent_by_us, conflict.sent_by_us) == (True, False)


async def test_an_answer_to_a_broken_envelope_is_queued_without_it(store: Store) -> None:
    source = ReceiptTarget(
        id="msg_bad",
        workspace_id=WORKSPACE,
        channel=CHANNEL,
        kind="say",
        sender=BOB,
        surface="thread",
        container="thread_one",
        work_id="work_x",
    )

    def job(tx: Transaction) -> Applied:
        effects = refuse(Expired("has passed", "expires_at"), source, load_receipt_state(tx, source), receiver())
        assert any(isinstance(effect, Queue) for effect in effects)
        return Application(tx, US, NOW_MS).refuse(effects)

    applied = await store.write(job)
    assert applied.seq is None
    (row,) = await outbox.queued(store.reader, 0, 10)
    assert (row.seq,) == applied.queued
    assert await rows(store, "SELECT count(*) FROM envelopes WHERE direction = 'in'") == [(0,)]


# what receipts and traces say about what we sent


async def open_ours(store: Store) -> tuple[str, str]:
    """An own work with a second message, both published. Their ids."""
    opening = say(sender=US, to=BOB, work_id="work_mine")
    more = say(sender=US, to=BOB, work_id="work_mine")
    for envelope in (opening, more):
        applied = await store.write(sending(envelope))
        handed_over = [retry.RetrySchedule(seq, None) for seq in applied.queued]
        await store.write(partial(retry.published, schedules=handed_over, now_ms=NOW_MS))
    return opening.id, more.id


async def test_a_receipt_marks_the_message_it_names(store: Store) -> None:
    opening, more = await open_ours(store)
    await receive(store, receipt("duplicate", more, work_id="work_mine", reason_code="duplicate"))
    states = dict(await outbox_states(store))
    assert states[more] == "receipted"
    assert states[opening] == "receipted"  # the work is known there: its opening arrived


async def test_a_trace_marks_the_opening_as_arrived_and_no_later_message(store: Store) -> None:
    opening, more = await open_ours(store)
    await receive(store, trace("working", work_id="work_mine"))
    assert dict(await outbox_states(store)) == {opening: "receipted", more: "published"}
    await receive(store, trace("working", work_id="work_mine", causation_id=more))
    assert dict(await outbox_states(store)) == {opening: "receipted", more: "receipted"}


async def test_a_third_peer_cannot_mark_a_message_as_arrived(store: Store) -> None:
    opening, more = await open_ours(store)
    await receive(store, receipt("duplicate", opening, sender=EVE, work_id="work_mine", reason_code="duplicate"))
    assert dict(await outbox_states(store)) == {opening: "published", more: "published"}


async def test_a_capability_opens_a_work_by_its_summary(store: Store) -> None:
    document = {"id": "test.run", "summary": "Runs the tests", "outcome": "A report"}
    document["digest"] = capability_digest(document)
    await receive(store, make("capability", {"capability": document}, sender=BOB, to=US, work_id="work_c"))
    (work,) = (await reads.works(store.reader, WorksQuery())).works
    assert work.text == "Runs the tests"


class TestReceiptsThatRefuse:
    """Automatic receipts of a peer, of which this store does not know whether it acknowledges."""

    async def opened(self, store: Store) -> tuple[str, str]:
        """The ids of an opening of ours and of a further say, both published."""
        opening, more = [say(US, BOB, work_id="work_a") for _ in range(2)]
        for envelope in (opening, more):
            await store.write(sending(envelope))
        return opening.id, more.id

    @pytest.mark.parametrize(
        ("status", "reason", "about", "state"),
        [
            ("rejected", "work_closed", "more", "refused"),
            ("rejected", "work_container_mismatch", "more", "refused"),
            ("expired", "expired", "more", "refused"),
            ("unsupported", "unsupported_kind", "opening", "refused"),
            ("rejected", "verification_failed", "opening", "refused"),
            ("rejected", "busy", "opening", "receipted"),  # the agent's decision about the work
            ("canceled", "busy", "opening", "receipted"),
            ("duplicate", "duplicate", "more", "receipted"),
        ],
    )
    async def test_the_message_is_refused(self, store: Store, status: str, reason: str, about: str, state: str) -> None:
        opening, more = await self.opened(store)
        for_id = opening if about == "opening" else more
        applied = await receive(store, receipt(status, for_id, work_id="work_a", reason_code=reason))
        assert dict(await outbox_states(store))[for_id] == state
        if state == "refused":
            assert applied.refused is not None
            assert (applied.refused.message_id, applied.refused.detail) == (for_id, f"by a receipt: {reason}")
        else:
            assert applied.refused is None

    async def test_a_duplicate_does_not_answer_for_a_peer_that_acknowledges(self, store: Store) -> None:
        _, more = await self.opened(store)
        store.memory.acknowledging[BOB] = True
        await receive(store, receipt("duplicate", more, work_id="work_a", reason_code="duplicate"))
        assert dict(await outbox_states(store))[more] == "queued"

    async def test_a_refusal_of_what_expired_before_shows_no_arrival(self, store: Store) -> None:
        """The opening has expired, our daemon has canceled the work, and the receiver says that it came too late."""
        opening, more = await self.opened(store)
        await store.write(lambda tx: retry.give_up(tx, 1, "expired", "no answer before it expired"))
        await store.write(sending(receipt("canceled", opening, US, BOB, work_id="work_a", reason_code="expired")))
        await receive(store, receipt("expired", opening, work_id="work_a", reason_code="expired", causation_id=opening))
        assert (await outbox_states(store))[:2] == [(opening, "expired"), (more, "queued")]
        assert await store.write(lambda tx: retry.is_settled(tx, WORKSPACE, opening))
        await receive(store, trace("working", work_id="work_a"))  # a late answer of one who has taken it
        assert await rows(store, "SELECT state, detail FROM outbox WHERE seq = 1") == [("receipted", None)]

    async def test_an_end_of_the_other_side_that_crosses_ours_refuses_ours(self, store: Store) -> None:
        """Of a peer of another implementation, which never answers receipts."""
        opening, _ = await self.opened(store)
        await store.write(sending(cancel := receipt("canceled", opening, US, BOB, work_id="work_a")))
        equal = await receive(store, trace("canceled", work_id="work_a"))
        assert equal.refused is None
        other = await receive(store, trace("completed", work_id="work_a"))
        assert other.refused is not None
        assert (other.refused.message_id, other.refused.reason) == (cancel.id, "work_closed")
        assert other.refused.detail == "by the receiver: work_closed, the work is completed there"
        states = dict(await outbox_states(store))
        assert (states[opening], states[cancel.id]) == ("receipted", "refused")
        assert (await receive(store, trace("failed", work_id="work_a"))).refused is None

    async def test_only_its_receiver_refuses_a_message(self, store: Store) -> None:
        _, more = await self.opened(store)
        await receive(store, receipt("expired", more, sender=EVE, work_id="work_a", reason_code="expired"))
        assert dict(await outbox_states(store))[more] == "queued"
