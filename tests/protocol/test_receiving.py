"""Steps 6 to 9 of spec section 5 for valid envelopes: trust, routing, rooms, duplicates, effects of the lifecycle."""

from itertools import count
from typing import Any, Final, TypeVar

import pytest

from aghbus.protocol.agh.bodies import Receipt
from aghbus.protocol.agh.delivery.order import AFTER
from aghbus.protocol.agh.effects import (
    Advance,
    AnswerWhois,
    Bind,
    Deliver,
    Discovered,
    Effect,
    Effects,
    Ignore,
    Open,
    PeerIdConflict,
    Quarantine,
    Queue,
    RecordId,
    Requeue,
    StoreEnvelope,
)
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.identifiers import direct_id
from aghbus.protocol.agh.lifecycle import Transition, WorkView
from aghbus.protocol.agh.limits import REPLAY_AGE
from aghbus.protocol.agh.receive import Receiver, StoredState, decide
from aghbus.protocol.agh.rooms import Binding
from aghbus.protocol.agh.trust.keys import SigningKey
from aghbus.protocol.agh.trust.proof import EnvelopeSigner
from tests.support.wire import (
    CARD,
    CHANNEL,
    DISCOVERY,
    JOINED,
    NOW,
    RECORD,
    THREAD,
    WORK,
    WORKSPACE,
    A,
    B,
    C,
    envelope,
    receipt,
    say,
    trace,
)

E = TypeVar("E", bound=Effect)
ROOM: Final = direct_id(WORKSPACE, CHANNEL, A, B)
OPAQUE: Final = "direct_" + "9" * 32
HANDLE: Final = "ops@" + "a" * 32


def receiver(us: str = B, **changes: Any) -> Receiver:
    numbers = count(1)
    fields: dict[str, Any] = {
        "self_id": us,
        "now": NOW,
        "mint": lambda: f"msg_auto_{next(numbers)}",
        "channels": JOINED,
    }
    return Receiver(**{**fields, **changes})


def work(state: str = "working", **changes: Any) -> WorkView:
    """A's work for B in the thread, as either keeps it."""
    fields: dict[str, Any] = {
        "workspace_id": WORKSPACE,
        "channel": CHANNEL,
        "work_id": WORK,
        "surface": "thread",
        "container": THREAD,
        "initiator": A,
        "target": B,
        "state": state,
        "opening_id": "msg_1",
        "advanced": state != "submitted",
    }
    return WorkView(**{**fields, **changes})


def closed_by(peer: str) -> WorkView:
    return work("completed", terminal_id="msg_end", terminal_sender=peer)


def kinds(effects: Effects) -> list[type[Effect]]:
    return [type(effect) for effect in effects]


def only(effects: Effects, kind: type[E]) -> E:
    (found,) = [effect for effect in effects if isinstance(effect, kind)]
    return found


def body_of(queued: Envelope) -> Receipt:
    assert isinstance(queued.body, Receipt)
    return queued.body


def direct(room: str = ROOM, **changes: Any) -> Envelope:
    return say(**{"surface": "direct", "thread_id": ..., "direct_id": room, "work_id": ..., **changes})


class TestRouting:
    def test_a_directed_say_opens_a_work_and_is_delivered(self) -> None:
        effects = decide(say(), StoredState(), receiver())
        assert kinds(effects) == [RecordId, StoreEnvelope, Open, Deliver]
        opened = only(effects, Open).work
        assert (opened.initiator, opened.target, opened.state, opened.opening_id) == (A, B, "submitted", "msg_1")
        assert only(effects, StoreEnvelope) == StoreEnvelope("in", "unverified", Transition("opened", "submitted"))
        assert only(effects, RecordId).until == NOW + 301

    def test_a_directed_capability_opens_a_work_too(self) -> None:
        assert Open in kinds(decide(envelope("capability"), StoredState(), receiver()))

    @pytest.mark.parametrize("kind", ["say", "capability"])
    def test_a_broadcast_is_delivered_and_opens_no_work(self, kind: str) -> None:
        effects = decide(envelope(kind, to=None), StoredState(), receiver())
        assert kinds(effects) == [RecordId, StoreEnvelope, Deliver]
        assert only(effects, StoreEnvelope).verdict == Transition("unchanged", None)

    def test_conversation_without_work_is_delivered(self) -> None:
        effects = decide(say(work_id=...), StoredState(), receiver())
        assert kinds(effects) == [RecordId, StoreEnvelope, Deliver]
        assert only(effects, StoreEnvelope).verdict is None

    @pytest.mark.parametrize("kind", ["say", "capability", "receipt", "trace", "whois"])
    def test_a_message_to_another_peer_is_not_target_without_a_receipt(self, kind: str) -> None:
        effects = decide(envelope(kind, to=C), StoredState(), receiver())
        assert kinds(effects) == [Quarantine]
        assert only(effects, Quarantine).reason == "not_target"

    def test_a_channel_that_was_not_joined_is_not_target(self) -> None:
        for place in ({"channel": "other"}, {"workspace_id": "ws_other"}):
            assert kinds(decide(say(**place), StoredState(), receiver())) == [Quarantine]

    def test_own_message_is_ignored_and_an_unsent_one_is_a_conflict(self) -> None:
        ours = say(sender=B, to=A)
        assert decide(ours, StoredState(sent_by_us=True), receiver()) == (Ignore("own"),)
        assert decide(ours, StoredState(), receiver()) == (PeerIdConflict(ours),)
        greet = envelope("greet", sender=B, body={"peer_card": {**CARD, "peer_id": B}})
        assert decide(greet, StoredState(), receiver()) == (PeerIdConflict(greet),)

    def test_an_id_is_recorded_as_long_as_the_envelope_can_be_fresh(self) -> None:
        assert only(decide(say(expires_at=NOW + 50), StoredState(), receiver()), RecordId).until == NOW + 50
        far = decide(say(expires_at=NOW + 10**9), StoredState(), receiver())
        assert only(far, RecordId).until == NOW + 7 * 86_400 + 1


class TestTrust:
    def test_a_handle_without_a_proof_is_refused_and_its_opening_answered(self) -> None:
        effects = decide(say(sender=HANDLE), StoredState(), receiver())
        assert kinds(effects) == [Quarantine, Queue]
        assert body_of(only(effects, Queue).envelope).reason_code == "verification_failed"

    def test_an_unsigned_continuation_by_a_handle_does_not_fail_the_work(self) -> None:
        assert kinds(decide(say(sender=HANDLE), StoredState(work=work(initiator=HANDLE)), receiver())) == [Quarantine]

    def test_a_refused_message_to_another_peer_is_not_answered(self) -> None:
        assert kinds(decide(say(sender=HANDLE, to=C), StoredState(), receiver(observe=True))) == [Quarantine]
        assert kinds(decide(say(sender=HANDLE, channel="other"), StoredState(), receiver())) == [Quarantine]

    def test_a_refused_message_in_an_opaque_room_is_not_answered(self) -> None:
        ours = direct_id(WORKSPACE, CHANNEL, HANDLE, B)
        assert Queue in kinds(decide(direct(ours, sender=HANDLE, work_id=WORK), StoredState(), receiver()))
        assert kinds(decide(direct(OPAQUE, sender=HANDLE, work_id=WORK), StoredState(), receiver())) == [Quarantine]
        assert kinds(decide(direct(ROOM, sender=HANDLE, work_id=WORK), StoredState(), receiver())) == [Quarantine]

    def test_another_profile_is_unverified_for_a_plain_peer(self) -> None:
        effects = decide(say(proof={"profile": "acme/v1"}), StoredState(), receiver())
        assert only(effects, StoreEnvelope).trust == "unverified"

    def test_a_valid_proof_is_verified(self) -> None:
        proof = {"profile": "agh-network.trust.ed25519-jcs/v1"}
        effects = decide(say(sender=HANDLE, proof=proof), StoredState(), receiver(verifier=lambda envelope: None))
        assert only(effects, StoreEnvelope).trust == "verified"


class TestDirectRooms:
    def test_the_derived_room_is_bound_on_first_use_and_only_then(self) -> None:
        bound = Binding((A, B), authoritative=True)
        first = decide(direct(), StoredState(), receiver())
        assert only(first, Bind).binding == bound
        assert only(first, StoreEnvelope).pair == (A, B)
        assert Bind not in kinds(decide(direct(), StoredState(room=bound), receiver()))

    def test_an_opaque_id_is_bound_to_its_first_pair(self) -> None:
        for room in (OPAQUE, "direct_" + "f" * 32):
            first = decide(direct(room), StoredState(), receiver())
            assert only(first, Bind).binding == Binding((A, B), authoritative=False)
        again = decide(direct(OPAQUE), StoredState(room=Binding((A, B), authoritative=False)), receiver())
        assert kinds(again) == [RecordId, StoreEnvelope, Deliver]

    def test_a_third_peer_is_refused_in_a_bound_room(self) -> None:
        for taken in (Binding((A, B), authoritative=False), Binding((A, B), authoritative=True)):
            effects = decide(direct(OPAQUE, sender=C), StoredState(room=taken), receiver())
            assert kinds(effects) == [Quarantine]
            assert only(effects, Quarantine).reason == "not_target"

    def test_the_pair_that_an_id_is_derived_from_takes_it_over(self) -> None:
        squatted = Binding((B, C), authoritative=False)
        assert only(decide(direct(), StoredState(room=squatted), receiver()), Bind).binding == Binding(
            (A, B), authoritative=True
        )

    def test_the_derived_room_of_another_pair_cannot_be_used(self) -> None:
        effects = decide(direct(ROOM, sender=C), StoredState(room=Binding((A, B), authoritative=True)), receiver())
        assert kinds(effects) == [Quarantine]

    def test_an_undirected_message_is_accepted_only_in_the_derived_room(self) -> None:
        assert Deliver in kinds(decide(direct(to=None), StoredState(), receiver()))
        assert kinds(decide(direct(OPAQUE, to=None), StoredState(), receiver())) == [Quarantine]
        bound = Binding((A, B), authoritative=False)
        assert kinds(decide(direct(OPAQUE, to=None), StoredState(room=bound), receiver())) == [Quarantine]
        assert kinds(decide(direct(to=None), StoredState(), receiver(C))) == [Quarantine]

    def test_a_refused_member_gets_no_receipt_even_for_a_work(self) -> None:
        taken = StoredState(room=Binding((A, B), authoritative=True))
        assert kinds(decide(direct(OPAQUE, sender=C, work_id=WORK), taken, receiver())) == [Quarantine]


class TestDuplicates:
    def test_the_duplicate_of_a_work_message_is_answered_and_changes_no_state(self) -> None:
        effects = decide(say(trace_id="t-9"), StoredState(duplicate=True, work=work()), receiver())
        assert kinds(effects) == [Ignore, Queue]
        queued = only(effects, Queue)
        answer = queued.envelope
        assert body_of(answer) == Receipt("msg_1", "duplicate", "duplicate", "already processed")
        assert (answer.sender, answer.to, answer.container, answer.work_id) == (B, A, THREAD, WORK)
        assert (answer.reply_to, answer.causation_id, answer.trace_id) == ("msg_1", "msg_1", "t-9")
        assert only(queued.effects, Advance).after.state == "working"
        assert only(queued.effects, StoreEnvelope).verdict == Transition("unchanged", "working")

    def test_duplicate_on_closed_work_requeues_terminal_message_first(self) -> None:
        effects = decide(say(), StoredState(duplicate=True, work=closed_by(B)), receiver())
        assert kinds(effects) == [Ignore, Requeue, Queue]
        assert only(effects, Requeue) == Requeue(WORKSPACE, "msg_end")
        assert body_of(only(effects, Queue).envelope).status == "duplicate"
        assert Advance not in kinds(only(effects, Queue).effects)

    def test_an_end_sent_by_the_sender_is_not_repeated_to_it(self) -> None:
        assert kinds(decide(say(), StoredState(duplicate=True, work=closed_by(A)), receiver())) == [Ignore, Queue]

    @pytest.mark.parametrize(
        "silent",
        [
            receipt("accepted"),
            trace("working"),
            say(work_id=..., sender=B, to=A),
            say(to=None, sender=B),
            envelope("greet", sender=B, body={"peer_card": {**CARD, "peer_id": B}}),
            envelope("whois", sender=B),
        ],
    )
    def test_other_duplicates_are_not_answered(self, silent: Envelope) -> None:
        effects = decide(silent, StoredState(duplicate=True, work=work()), receiver(A))
        assert effects == (Ignore("duplicate"),)

    def test_duplicate_in_wrong_container_is_answered_there_only(self) -> None:
        elsewhere = say(thread_id="thread_other", id="msg_stray")
        effects = decide(elsewhere, StoredState(duplicate=True, work=work()), receiver())
        queued = only(effects, Queue)
        assert queued.envelope.container == "thread_other"
        assert Advance not in kinds(queued.effects)

    def test_a_duplicate_of_a_third_peer_adds_no_history(self) -> None:
        effects = decide(say(sender=C), StoredState(duplicate=True, work=work()), receiver())
        assert Advance not in kinds(only(effects, Queue).effects)

    def test_a_third_peer_cannot_make_us_repeat_the_end_of_a_work(self) -> None:
        assert Requeue not in kinds(decide(say(sender=C), StoredState(duplicate=True, work=closed_by(B)), receiver()))

    def test_a_duplicate_in_a_room_of_other_peers_is_not_target(self) -> None:
        taken = StoredState(duplicate=True, room=Binding((A, B), authoritative=True))
        assert kinds(decide(direct(OPAQUE, sender=C, work_id=WORK), taken, receiver())) == [Quarantine]


class TestLifecycleEffects:
    def test_message_on_closed_work_requeues_terminal_message_first(self) -> None:
        effects = decide(say(id="msg_late"), StoredState(work=closed_by(B)), receiver())
        assert kinds(effects) == [RecordId, StoreEnvelope, Requeue, Queue]
        assert only(effects, StoreEnvelope).verdict == Transition("rejected", "completed", "work_closed")
        assert only(effects, Requeue) == Requeue(WORKSPACE, "msg_end")
        assert body_of(only(effects, Queue).envelope) == Receipt("msg_late", "rejected", "work_closed", None)

    @pytest.mark.parametrize("signed", [True, False])
    def test_an_end_under_a_new_id_has_the_content_of_the_old_one(self, signed: bool) -> None:
        signer = EnvelopeSigner(SigningKey(bytes(32)), "ops")
        us = signer.handle if signed else B
        room = direct_id(WORKSPACE, CHANNEL, A, us)
        place = {"surface": "direct", "thread_id": ..., "direct_id": room}
        ext = {"note": 1, AFTER: {"id": "msg_x", "expires_at": NOW + 9}}
        old = trace("completed", sender=us, trace_id="t-9", reply_to="msg_1", ts=NOW - 9, ext=ext, **place)
        ended = work("completed", target=us, terminal_id=old.id, terminal_sender=us, surface="direct", container=room)
        late = say(id="msg_late", to=us, **place)
        we = receiver(us, signer=signer if signed else None)
        effects = decide(late, StoredState(work=ended, end=old.raw), we)
        again, refusal = (effect for effect in effects if isinstance(effect, Queue))
        new, fresh = again.envelope.document(), {"id", "ts", "expires_at", "ext", "proof"}
        assert {**new, **dict.fromkeys(fresh)} == {**old.document(), **dict.fromkeys(fresh)}
        assert (new["id"], new["ts"], new["ext"]) == ("msg_auto_1", NOW, {"note": 1})
        assert again.envelope.fresh_until > NOW
        assert (new["proof"] is not None) == signed
        assert kinds(again.effects) == [StoreEnvelope]
        assert not again.automatic  # the refusal after it is counted
        assert refusal.envelope.extensions()[AFTER]["id"] == "msg_auto_1"

    def test_work_closed_by_other_side_requeues_no_terminal_message(self) -> None:
        assert kinds(decide(say(id="msg_late"), StoredState(work=closed_by(A)), receiver())) == [
            RecordId,
            StoreEnvelope,
            Queue,
        ]

    def test_wrong_container_is_rejected_in_the_envelopes_container(self) -> None:
        effects = decide(say(id="msg_stray", thread_id="thread_other"), StoredState(work=work()), receiver())
        assert kinds(effects) == [RecordId, StoreEnvelope, Queue]
        queued = only(effects, Queue)
        assert queued.envelope.container == "thread_other"
        assert body_of(queued.envelope).reason_code == "work_container_mismatch"
        assert Advance not in kinds(queued.effects)

    @pytest.mark.parametrize("state", ["working", "completed"])
    def test_traces_and_receipts_are_never_answered(self, state: str) -> None:
        known = work(state, terminal_id="msg_end", terminal_sender=A) if state == "completed" else work(state)
        for body in (trace("submitted"), trace("failed", thread_id="thread_other"), receipt("rejected", "busy")):
            effects = decide(body, StoredState(work=known), receiver(A))
            assert not {Queue, Deliver} & set(kinds(effects))
            assert all(effect.missed for effect in effects if isinstance(effect, Requeue))

    def test_a_late_trace_repeats_our_terminal_message_if_that_was_given_up(self) -> None:
        known = work("completed", terminal_id="msg_end", terminal_sender=A)
        late = decide(trace("working"), StoredState(work=known), receiver(A))
        assert only(late, Requeue) == Requeue(WORKSPACE, "msg_end", missed=True)
        assert Requeue not in kinds(decide(trace("working"), StoredState(work=closed_by(B)), receiver(A)))

    def test_a_trace_of_an_unknown_work_is_stored_with_its_verdict(self) -> None:
        effects = decide(trace("completed"), StoredState(), receiver(A))
        assert kinds(effects) == [RecordId, StoreEnvelope]
        assert only(effects, StoreEnvelope).verdict == Transition("ignored", None, "not_found")

    def test_a_third_peer_changes_no_work_and_reaches_no_agent(self) -> None:
        for stray in (say(sender=C), trace("failed", sender=C), receipt("canceled", sender=C)):
            view = StoredState(work=work())
            assert kinds(decide(stray, view, receiver(A if stray.to == A else B))) == [RecordId, StoreEnvelope]

    def test_a_trace_advances_our_copy(self) -> None:
        effects = decide(trace("completed"), StoredState(work=work()), receiver(A))
        assert kinds(effects) == [RecordId, StoreEnvelope, Advance]
        ended = only(effects, Advance).after
        assert (ended.state, ended.terminal_id, ended.terminal_sender) == ("completed", "msg_completed", B)

    @pytest.mark.parametrize(("reactions", "delivered"), [("all", [0, 1, 2]), ("questions", [0]), ("none", [])])
    def test_an_initiator_gets_the_reactions_that_it_asked_for(self, reactions: str, delivered: list[int]) -> None:
        view, refused = StoredState(work=work(reactions=reactions)), receipt("rejected", "not_found")
        answers = (
            trace("needs_input"),
            trace("completed"),
            receipt("canceled", "work_closed"),
            trace("working"),
            refused,
        )
        effects = [kinds(decide(answer, view, receiver(A))) for answer in answers]
        assert [number for number, found in enumerate(effects) if Deliver in found] == delivered

    @pytest.mark.parametrize(("status", "reason"), [("expired", "expired"), ("unsupported", "unsupported_kind")])
    def test_the_initiator_closes_a_work_whose_opening_was_refused(self, status: str, reason: str) -> None:
        effects = decide(receipt(status, reason), StoredState(work=work("submitted")), receiver(A))
        assert kinds(effects) == [RecordId, StoreEnvelope, Advance, Queue]
        closing = only(effects, Queue)
        assert body_of(closing.envelope).status == "canceled"
        assert (closing.envelope.sender, closing.envelope.to) == (A, B)
        assert only(closing.effects, Advance).after.state == "canceled"
        assert only(closing.effects, Advance).after.terminal_sender == A
        assert (
            not closing.automatic
        )  # it must not be lost to the other peer's budget: nothing would close the work later

    def test_receipt_for_other_message_or_advanced_work_keeps_it_open(self) -> None:
        for answer, known in (
            (receipt("expired", "expired"), work("working")),
            (receipt("expired", "expired"), work("submitted", advanced=True)),
            (receipt("expired", "expired", for_id="msg_2"), work("submitted")),
            (receipt("duplicate", "duplicate"), work("submitted")),
            (receipt("unsupported", "unsupported_kind", sender=C), work("submitted")),
        ):
            assert Queue not in kinds(decide(answer, StoredState(work=known), receiver(A)))

    def test_the_target_closes_no_work_for_a_receipt_to_its_own_message(self) -> None:
        answer = receipt("expired", "expired", sender=A, to=B)
        assert Queue not in kinds(decide(answer, StoredState(work=work("submitted")), receiver(B)))

    def test_automatic_receipts_have_the_configured_lifetime(self) -> None:
        effects = decide(say(), StoredState(duplicate=True), receiver(receipt_ttl=60))
        assert only(effects, Queue).envelope.expires_at == NOW + 60
        assert only(effects, Queue).automatic


class TestDiscovery:
    def test_a_greet_refreshes_presence(self) -> None:
        effects = decide(envelope("greet"), StoredState(), receiver())
        assert kinds(effects) == [RecordId, Discovered]
        found = only(effects, Discovered)
        assert (found.card.peer_id, found.trust, found.answer_to) == (A, "unverified", None)

    @pytest.mark.parametrize("expires_at", [..., NOW + 3600])
    @pytest.mark.parametrize("kind", DISCOVERY)
    def test_discovery_is_fresh_until_it_is_older_than_the_replay_age(self, kind: str, expires_at: object) -> None:
        said = envelope(kind, expires_at=expires_at)
        recorded = only(decide(said, StoredState(), receiver(now=NOW + REPLAY_AGE)), RecordId)
        assert recorded.until == NOW + REPLAY_AGE + 1
        assert decide(said, StoredState(), receiver(now=NOW + REPLAY_AGE + 1)) == (Ignore("stale"),)

    def test_a_whois_request_is_left_to_the_daemon_to_answer(self) -> None:
        for to in (None, B):
            asked = envelope("whois", to=to)
            assert decide(asked, StoredState(), receiver())[-1] == AnswerWhois(asked)

    def test_a_whois_response_names_its_request(self) -> None:
        answer = envelope("whois", to=B, reply_to="msg_q", body={"type": "response", "peer_card": CARD})
        assert only(decide(answer, StoredState(), receiver()), Discovered).answer_to == "msg_q"


class TestObserving:
    def test_observed_works_are_tracked_not_delivered_or_answered(self) -> None:
        effects = decide(say(), StoredState(), receiver(C, observe=True))
        assert kinds(effects) == [RecordId, StoreEnvelope, Open]
        assert only(effects, StoreEnvelope).direction == "observed"
        moved = decide(trace("working"), StoredState(work=work("submitted")), receiver(C, observe=True))
        assert kinds(moved) == [RecordId, StoreEnvelope, Advance]
        late = decide(say(id="msg_late"), StoredState(work=closed_by(B)), receiver(C, observe=True))
        assert kinds(late) == [RecordId, StoreEnvelope]

    def test_direct_rooms_of_other_peers_are_only_counted(self) -> None:
        assert decide(direct(), StoredState(), receiver(C, observe=True)) == (Ignore("private_room"),)

    def test_duplicates_and_discovery_of_other_peers_are_only_counted(self) -> None:
        watching = receiver(C, observe=True)
        assert decide(say(), StoredState(duplicate=True), watching) == (Ignore("duplicate"),)
        assert decide(envelope("whois", to=B), StoredState(), watching) == (Ignore("discovery_of_others"),)

    def test_messages_to_the_observer_itself_are_handled_as_usual(self) -> None:
        assert Deliver in kinds(decide(say(to=C), StoredState(), receiver(C, observe=True)))


def test_capability_document_with_unknown_fields_is_delivered() -> None:
    record = {**RECORD, "workspace_id": WORKSPACE}
    document = {**envelope("capability").document()["body"]["capability"], **record}
    delivered = decide(envelope("capability", body={"capability": document}), StoredState(), receiver())
    assert Deliver in kinds(delivered)
