"""The predecessor of an envelope: its grammar, the header that settles it, and the rule of the receiver; acknowledgements."""

import json
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.bodies import Receipt
from aghbus.protocol.agh.delivery.acks import Ack, ack_of, encode_ack, parse_ack
from aghbus.protocol.agh.delivery.order import AFTER, Predecessor, may_take, predecessor_of, settled_header
from aghbus.protocol.agh.effects import Deliver, Early, Quarantine, Queue, RecordId, StoreEnvelope
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.errors import Expired
from aghbus.protocol.agh.lifecycle import CONTINUES, Transition, opened_by
from aghbus.protocol.agh.receipt_target import ReceiptTarget, source_of
from aghbus.protocol.agh.receive import Receiver, StoredState, decide, refuse
from aghbus.protocol.agh.send import Draft, build
from aghbus.protocol.agh.trust.keys import SigningKey
from aghbus.protocol.agh.trust.proof import EnvelopeSigner
from tests.support.wire import CHANNEL, JOINED, NOW, THREAD, WORKSPACE, A, B, receipt, say, trace

AFTER_OPENING: Final = Predecessor("msg_open", NOW + 60)


def receiver(**changes: Any) -> Receiver:
    fields: dict[str, Any] = {"self_id": B, "now": NOW, "mint": lambda: "msg_auto", "channels": JOINED}
    return Receiver(**{**fields, **changes})


def following(after: Predecessor = AFTER_OPENING, **changes: Any) -> Envelope:
    return say(id="msg_next", ext={AFTER: msgspec.to_builtins(after)}, **changes)


@given(st.text(min_size=1, max_size=40).filter(str.isprintable), st.integers(1, 2**53))
def test_a_predecessor_round_trips_through_ext(message_id: str, expires_at: int) -> None:
    after = Predecessor(message_id.strip() or "msg_1", expires_at)
    assert predecessor_of(following(after)) == after


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "msg_open",
        [],
        {},
        {"id": "msg_open"},
        {"id": 5, "expires_at": NOW},
        {"id": " ", "expires_at": NOW},
        {"id": "msg_open", "expires_at": 0},
        {"id": "msg_open", "expires_at": 1.5},
        {"id": "msg_open", "expires_at": 2**70},
    ],
)
def test_a_value_outside_the_grammar_names_no_predecessor(value: object) -> None:
    assert predecessor_of(say(ext={AFTER: value})) is None
    assert predecessor_of(say(ext={"other": 1, "text": AFTER})) is None
    assert predecessor_of(say()) is None


def test_the_predecessor_of_a_draft_is_in_ext_beside_the_callers_entries() -> None:
    draft = Draft(
        "msg_next", WORKSPACE, CHANNEL, "say", A, NOW, {"text": "x"}, B, "thread", THREAD, after=AFTER_OPENING
    )
    assert build(draft, NOW).extensions() == {AFTER: {"id": "msg_open", "expires_at": NOW + 60}}
    both = Draft(
        "msg_next",
        WORKSPACE,
        CHANNEL,
        "say",
        A,
        NOW,
        {"text": "x"},
        B,
        "thread",
        THREAD,
        ext={"k": 1},
        after=AFTER_OPENING,
    )
    assert build(both, NOW).extensions() == {"k": 1, AFTER: {"id": "msg_open", "expires_at": NOW + 60}}


class TestMayTake:
    def test_after_the_predecessor_was_processed_or_has_expired(self) -> None:
        envelope = following()
        assert may_take(AFTER_OPENING, envelope, processed=True, now=NOW, settled="")
        assert not may_take(AFTER_OPENING, envelope, processed=False, now=NOW + 59, settled="")
        assert may_take(AFTER_OPENING, envelope, processed=False, now=NOW + 60, settled="")

    def test_when_the_header_settles_that_predecessor_of_that_envelope(self) -> None:
        def takes(value: str) -> bool:
            return may_take(AFTER_OPENING, following(), processed=False, now=NOW, settled=value)

        good = settled_header("msg_next", "msg_open", sender=A, to=B, signer=None)
        assert [takes(good.ljust(size)) for size in (0, 4096, 4097)] == [True, True, False]
        assert not takes(settled_header("msg_next", "msg_other", sender=A, to=B, signer=None))
        assert not takes(settled_header("msg_other", "msg_open", sender=A, to=B, signer=None))

    def test_a_handle_must_have_signed_the_header_for_this_receiver(self) -> None:
        signer, thief = (EnvelopeSigner(SigningKey(bytes([number]) * 32), "ops") for number in (1, 2))
        sender = signer.handle
        draft = Draft("msg_next", WORKSPACE, CHANNEL, "say", sender, NOW, {"text": "x"}, B, "thread", THREAD)
        envelope = build(msgspec.structs.replace(draft, after=AFTER_OPENING), NOW, signer)

        def takes(value: str) -> bool:
            return may_take(AFTER_OPENING, envelope, processed=False, now=NOW, settled=value)

        good = settled_header("msg_next", "msg_open", sender=sender, to=B, signer=signer)
        assert takes(good)
        assert not takes(settled_header("msg_next", "msg_open", sender=sender, to=B, signer=None))
        assert not takes(settled_header("msg_next", "msg_open", sender=sender, to="another", signer=signer))
        forged = settled_header("msg_next", "msg_open", sender=thief.handle, to=B, signer=thief)
        assert not takes(forged)
        assert not takes(forged.replace(thief.handle, sender))
        assert good.isascii()

    @given(st.text(max_size=200))
    def test_any_text_in_the_header_is_judged_without_an_error(self, value: str) -> None:
        assert not may_take(AFTER_OPENING, following(), processed=False, now=NOW, settled=value)
        assert not may_take(AFTER_OPENING, following(), processed=False, now=NOW, settled=f"{'[' * 2000}{value}")


class TestDecide:
    def test_an_envelope_is_not_taken_before_its_predecessor(self) -> None:
        assert decide(following(), StoredState(), receiver()) == (Early(),)
        asked: list[tuple[str, str, str]] = []

        def processed(workspace_id: str, sender: str, message_id: str) -> bool:
            asked.append((workspace_id, sender, message_id))
            return True

        effects = decide(following(), StoredState(), receiver(processed=processed))
        assert RecordId in map(type, effects)
        assert asked == [(WORKSPACE, A, "msg_open")]
        header = settled_header("msg_next", "msg_open", sender=A, to=B, signer=None)
        assert Deliver() in decide(following(), StoredState(settled=header), receiver())

    def test_a_duplicate_and_a_message_to_everybody_are_not_early(self) -> None:
        assert Early() not in decide(following(), StoredState(duplicate=True), receiver())
        everybody = say(id="msg_next", to=None, work_id=None, ext={AFTER: msgspec.to_builtins(AFTER_OPENING)})
        assert Deliver() in decide(everybody, StoredState(), receiver())

    def test_an_automatic_receipt_names_its_predecessor(self) -> None:
        targets: list[ReceiptTarget] = []

        def predecessor(target: ReceiptTarget) -> Predecessor:
            targets.append(target)
            return AFTER_OPENING

        ended = msgspec.structs.replace(opened_by(say(id="msg_open")), state="canceled")
        effects = decide(say(id="msg_again"), StoredState(work=ended), receiver(predecessor=predecessor))
        (queued,) = [effect for effect in effects if isinstance(effect, Queue)]
        assert predecessor_of(queued.envelope) == AFTER_OPENING
        assert [(target.sender, target.container) for target in targets] == [(A, THREAD)]

    def test_a_receipt_duplicate_which_is_not_stored_names_none(self) -> None:
        """If the predecessor is never taken, nobody would settle it for a receipt that is published once."""
        ended = msgspec.structs.replace(
            opened_by(say(id="msg_open")), state="completed", terminal_id="msg_end", terminal_sender=B
        )
        for view in (StoredState(duplicate=True), StoredState(duplicate=True, work=ended)):
            effects = decide(say(id="msg_open"), view, receiver(predecessor=lambda _: AFTER_OPENING))
            (queued,) = [effect for effect in effects if isinstance(effect, Queue)]
            assert predecessor_of(queued.envelope) is None

    def test_a_late_copy_of_what_was_taken_is_a_duplicate(self) -> None:
        late, work = Expired("has passed", "expires_at"), opened_by(say(id="msg_open"))
        source = source_of(say(id="msg_more"))
        for view, status in ((StoredState(True, work=work), "duplicate"), (StoredState(work=work), "expired")):
            (queued,) = [one for one in refuse(late, source, view, receiver()) if isinstance(one, Queue)]
            assert isinstance(queued.envelope.body, Receipt)
            assert queued.envelope.body.status == status

    def test_conversation_that_continues_an_unknown_work_opens_none(self) -> None:
        for value, outcome in ((True, "ignored"), (1, "opened"), (None, "opened")):
            more = say(id="msg_more", ext={CONTINUES: value})
            effects = decide(more, StoredState(), receiver())
            (stored,) = [effect for effect in effects if isinstance(effect, StoreEnvelope)]
            assert stored.verdict is not None
            assert stored.verdict.outcome == outcome
            assert (Deliver() in effects) is (outcome == "opened")
            refused = Ack("msg_more", "refused", "not_found", more.digest)
            assert (ack_of(more, effects) == refused) is (outcome == "ignored")
            known = decide(more, StoredState(work=opened_by(say(id="msg_open"))), receiver())
            assert Deliver() in known


class TestAcknowledgements:
    def test_committed_only_with_effect(self) -> None:
        opening = say(id="msg_open")
        assert ack_of(opening, decide(opening, StoredState(), receiver())) == Ack(
            "msg_open", "committed", None, opening.digest
        )
        late = trace("working", id="msg_late", sender=A, to=B)
        lost = ack_of(late, decide(late, StoredState(), receiver()))
        assert lost == Ack("msg_late", "refused", "not_found", late.digest)
        answer = receipt("canceled", "busy", id="msg_end", sender=A)
        assert ack_of(
            answer, (StoreEnvelope("in", "unverified", Transition("rejected", "failed", "work_container_mismatch")),)
        ) == Ack("msg_end", "refused", "work_container_mismatch", answer.digest)
        closed = Transition("ignored", "completed", "work_closed")
        assert ack_of(answer, (StoreEnvelope("in", "unverified", closed),)) == Ack(
            "msg_end", "refused", "work_closed", answer.digest, "completed"
        )
        assert ack_of(answer, (Quarantine("not_target", "to: is another peer"),)) == Ack(
            "msg_end", "refused", "not_target", answer.digest
        )

    def test_a_duplicate_is_for_the_store_to_answer(self) -> None:
        assert ack_of(say(id="msg_1"), decide(say(id="msg_1"), StoredState(duplicate=True), receiver())) is None

    def test_the_digest_is_that_of_the_bytes(self) -> None:
        first, second = say(id="msg_1"), say(id="msg_1", ts=NOW + 1)
        assert first.digest == say(id="msg_1").digest != second.digest
        ack = Ack("msg_1", "committed", None, first.digest)
        assert parse_ack(encode_ack(ack)) == ack
        old = parse_ack(json.dumps({"aghbus": "ack", "id": "msg_1", "outcome": "committed"}).encode())
        assert isinstance(old, Ack)
        assert old.digest not in (first.digest, second.digest)
