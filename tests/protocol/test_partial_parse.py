"""Automatic receipts to envelopes that failed validation (spec section 5)."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.bodies import Receipt
from aghbus.protocol.agh.effects import Advance, Effects, Quarantine, Queue, Requeue, StoreEnvelope
from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.errors import InvalidSurface, Malformed, NotTarget, ProtocolError
from aghbus.protocol.agh.identifiers import direct_id, route_token
from aghbus.protocol.agh.lifecycle import WorkView, opened_by
from aghbus.protocol.agh.partial_parse import Origin, identity, origin_in, origin_of, partial_parse, readable
from aghbus.protocol.agh.receipt_target import ReceiptTarget
from aghbus.protocol.agh.receive import Receiver, StoredState, refuse
from tests.support.wire import (
    CHANNEL,
    JOINED,
    NOW,
    THREAD,
    WORK,
    WORKSPACE,
    A,
    B,
    C,
    dump,
    json_values,
    legible,
    say,
    wire,
)

US: Final = Receiver(self_id=B, now=NOW, mint=lambda: "msg_auto", channels=JOINED)
EXPIRED: Final = {"expires_at": NOW - 1}
MALFORMED: Final = {"body": {"text": " "}}


def refused(document: dict[str, Any], view: StoredState | None = None) -> Effects:
    """The effects of a document that fails validation, through the same three calls as the daemon's."""
    raw = dump(document)
    with pytest.raises(ProtocolError) as caught:
        parse(raw, NOW)
    return refuse(caught.value, partial_parse(readable(raw, caught.value), B, JOINED), view or StoredState(), US)


def answers(effects: Effects) -> list[tuple[str, str | None]]:
    assert isinstance(effects[0], Quarantine)
    queued = [effect.envelope for effect in effects if isinstance(effect, Queue)]
    bodies = [envelope.body for envelope in queued if isinstance(envelope.body, Receipt)]
    assert len(bodies) == len(queued)
    assert all(
        (envelope.sender, envelope.reply_to, envelope.causation_id) == (B, "msg_1", "msg_1") for envelope in queued
    )
    return [(body.status, body.reason_code) for body in bodies]


def open_work(**changes: Any) -> WorkView:
    view = opened_by(say(id="msg_open"))
    return WorkView(**{name: getattr(view, name) for name in view.__struct_fields__} | changes)


class TestReceipts:
    @pytest.mark.parametrize(
        ("changes", "answer"),
        [
            (EXPIRED, ("expired", "expired")),
            ({"ts": NOW - 301}, ("expired", "expired")),
            ({"kind": "direct"}, ("unsupported", "unsupported_kind")),
            ({"kind": "future"}, ("unsupported", "unsupported_kind")),
            (MALFORMED, ("rejected", "malformed")),
            ({"body": ...}, ("rejected", "malformed")),
            ({"ts": "soon"}, ("rejected", "malformed")),
        ],
    )
    def test_a_refused_opening_gets_a_receipt_with_the_reason(
        self, changes: dict[str, Any], answer: tuple[str, str]
    ) -> None:
        assert answers(refused(wire("say", trace_id="t-1", **changes))) == [answer]

    def test_an_opening_with_a_wrong_digest_gets_a_receipt(self) -> None:
        record = {"id": "a", "summary": "b", "outcome": "c", "digest": "sha256:0"}
        assert answers(refused(wire("capability", body={"capability": record}))) == [
            ("rejected", "verification_failed")
        ]

    def test_an_opening_with_the_legacy_field_gets_no_receipt(self) -> None:
        effects = refused(wire("say", interaction_id="int_1"))
        assert isinstance(effects[0], Quarantine)
        assert effects[0].reason == "legacy_field_rejected"
        assert answers(effects) == []

    def test_a_receipt_needs_a_valid_container(self) -> None:
        both = wire("say", direct_id="direct_" + "0" * 32)
        assert answers(refused(both)) == []
        error = InvalidSurface("must be absent", "surface")
        source = partial_parse(wire("say"), B, JOINED)
        assert answers(refuse(error, source, StoredState(), US)) == [("rejected", "invalid_surface")]

    def test_receipt_has_container_and_trace_id_of_the_refused_message(self) -> None:
        (queued,) = [
            effect for effect in refused(wire("say", trace_id="t-1", **MALFORMED)) if isinstance(effect, Queue)
        ]
        answer = queued.envelope
        assert (answer.to, answer.surface, answer.container, answer.work_id) == (A, "thread", THREAD, WORK)
        assert answer.trace_id == "t-1"
        assert [type(effect) for effect in queued.effects] == [StoreEnvelope]

    def test_message_is_answered_in_derived_but_not_in_opaque_room(self) -> None:
        room = direct_id(WORKSPACE, CHANNEL, A, B)
        direct = {"surface": "direct", "thread_id": ..., **EXPIRED}
        assert answers(refused(wire("say", direct_id=room, **direct))) == [("expired", "expired")]
        assert answers(refused(wire("say", direct_id="direct_" + "9" * 32, **direct))) == []


class TestNoReceipt:
    @pytest.mark.parametrize(
        "changes",
        [
            {"to": None},
            {"to": C},
            {"work_id": ...},
            {"work_id": "a/b"},
            {"id": ...},
            {"id": " x"},
            {"sender": "Nobody!"},
            {"channel": "other"},
            {"workspace_id": ["ws_alpha"]},
            {"workspace_id": {"a": 1}, "channel": []},
            {"surface": ...},
            {"thread_id": 5},
            {"kind": 7},
        ],
    )
    def test_messages_to_others_or_with_invalid_fields_get_no_receipt(self, changes: dict[str, Any]) -> None:
        assert answers(refused(wire("say", **{**EXPIRED, **changes}))) == []

    @pytest.mark.parametrize("kind", ["receipt", "trace"])
    def test_receipts_and_traces_get_no_receipt(self, kind: str) -> None:
        assert answers(refused(wire(kind, **EXPIRED))) == []

    @pytest.mark.parametrize("kind", ["greet", "whois"])
    def test_discovery_gets_no_receipt(self, kind: str) -> None:
        assert answers(refused(wire(kind, **EXPIRED))) == []

    def test_our_own_messages_get_no_receipt(self) -> None:
        assert answers(refused(wire("say", sender=B, **EXPIRED))) == []

    def test_not_target_gets_no_receipt(self) -> None:
        assert (
            answers(
                refuse(NotTarget("is another peer", "to"), partial_parse(wire("say"), B, JOINED), StoredState(), US)
            )
            == []
        )

    @pytest.mark.parametrize("changes", [MALFORMED, {"ts": "soon"}])
    def test_an_invalid_continuation_does_not_fail_an_open_work(self, changes: dict[str, Any]) -> None:
        assert answers(refused(wire("say", **changes), StoredState(work=open_work()))) == []

    def test_arbitrary_bytes_have_no_receipt_target(self) -> None:
        for raw in (b"", b"\xff", b"[]", b"{}", b"{"):
            assert legible(raw) in (None, {})
            assert partial_parse(legible(raw), B, JOINED) is None
            assert identity(legible(raw)) == ("", "")


class TestExpiredContinuations:
    def test_an_expired_continuation_is_answered_without_a_change_of_state(self) -> None:
        effects = refused(wire("say", **EXPIRED), StoredState(work=open_work(state="working")))
        assert answers(effects) == [("expired", "expired")]
        (queued,) = [effect for effect in effects if isinstance(effect, Queue)]
        (row,) = [effect for effect in queued.effects if isinstance(effect, Advance)]
        assert row.after.state == "working"

    def test_a_late_copy_of_the_opening_is_a_duplicate(self) -> None:
        work = open_work(opening_id="msg_1")
        assert answers(refused(wire("say", **EXPIRED), StoredState(work=work))) == [("duplicate", "duplicate")]

    def test_an_expired_message_on_a_closed_work_gets_our_end_first(self) -> None:
        done = open_work(opening_id="msg_1", state="completed", terminal_id="msg_end", terminal_sender=B)
        effects = refused(wire("say", **EXPIRED), StoredState(work=done))
        assert [type(effect) for effect in effects] == [Quarantine, Requeue, Queue]

    def test_the_same_id_from_another_sender_is_another_message(self) -> None:
        done = open_work(opening_id="msg_1", state="completed", terminal_id="msg_end", terminal_sender=B)
        effects = refused(wire("say", sender=C, **EXPIRED), StoredState(work=done))
        assert answers(effects) == [("expired", "expired")]
        assert Requeue not in [type(effect) for effect in effects]


def test_all_valid_fields_are_parsed() -> None:
    raw = dump(wire("say", trace_id="t", body=None))
    document = legible(raw)
    assert partial_parse(document, B, JOINED) == ReceiptTarget(
        id="msg_1",
        workspace_id=WORKSPACE,
        channel=CHANNEL,
        kind="say",
        sender=A,
        surface="thread",
        container=THREAD,
        work_id=WORK,
        trace_id="t",
    )
    assert identity(document) == ("msg_1", A)
    illegible = partial_parse(wire("say", trace_id=" "), B, JOINED)
    assert illegible is not None
    assert illegible.trace_id is None


@given(st.dictionaries(st.sampled_from([*wire("say"), "direct_id", "trace_id"]), json_values))
def test_partial_parse_and_refuse_never_raise(changes: dict[str, Any]) -> None:
    document = legible(dump({**wire("say"), **changes}))
    assert all(isinstance(part, str) for part in identity(document))
    source = partial_parse(document, B, JOINED)
    assert isinstance(refuse(Malformed("anything"), source, StoredState(), US)[0], Quarantine)


def test_messages_from_direct_rooms_of_other_peers_are_private() -> None:
    direct = {"surface": "direct", "thread_id": ..., "direct_id": direct_id(WORKSPACE, CHANNEL, A, B)}
    for changes, private in (({}, False), ({"to": C}, False), (direct, False), (direct | {"to": C}, True)):
        document, origin = wire("say", **changes), Origin("msg_1", A, private)
        assert origin_of(parse(dump(document), NOW), {B}) == origin_in(document, "", {B}) == origin
    assert not origin_of(parse(dump(wire("greet")), NOW), {B}).private
    for tail, private in ((f"peer.{route_token(B)}", False), (f"peer.{route_token(C)}", True), ("broadcast", False)):
        assert origin_in(None, f"agh.network.v0.ws.c.{tail}", {B}) == Origin("", "", private)
