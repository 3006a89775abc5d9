"""Sending: our own envelopes are validated, and every send updates our own copy of the work."""

import json
from typing import Any, Final

import pytest

from aghbus.protocol.agh.delivery.order import Predecessor
from aghbus.protocol.agh.effects import Advance, Bind, Open, StoreEnvelope
from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.identifiers import direct_id
from aghbus.protocol.agh.lifecycle import Transition, WorkView, opened_by
from aghbus.protocol.agh.limits import MAX_ENVELOPE_BYTES
from aghbus.protocol.agh.rooms import Binding
from aghbus.protocol.agh.send import Draft, apply_own, build, encoded
from aghbus.protocol.base.errors import InvalidRequest, Refused
from tests.support.wire import CHANNEL, NOW, THREAD, WORK, WORKSPACE, A, B, C, receipt, say, trace

ROOM: Final = direct_id(WORKSPACE, CHANNEL, A, B)
OPAQUE: Final = "direct_" + "9" * 32


def draft(**changes: Any) -> Draft:
    fields: dict[str, Any] = {
        "id": "msg_1",
        "workspace_id": WORKSPACE,
        "channel": CHANNEL,
        "kind": "say",
        "sender": A,
        "to": B,
        "ts": NOW,
        "body": {"text": "x"},
        "surface": "thread",
        "container": THREAD,
        "work_id": WORK,
    }
    return Draft(**{**fields, **changes})


def work(**changes: Any) -> WorkView:
    view = opened_by(say(id="msg_open"))
    return WorkView(**{name: getattr(view, name) for name in view.__struct_fields__} | changes)


class TestBuild:
    @pytest.mark.parametrize(
        "changes",
        [
            {"kind": "direct"},
            {"sender": "Ops"},
            {"to": ""},
            {"channel": "UP"},
            {"surface": None},
            {"surface": "room"},
            {"container": "thread_x"},
            {"ts": NOW - 301},
            {"expires_at": NOW},
            {"body": {"text": " "}},
            {"body": {"text": "\ud800"}},
            {"body": {"text": "x", "artifacts": [object()]}},
            {"kind": "trace", "body": {"state": "done"}},
            {"kind": "receipt", "body": {"for_id": "m", "status": "rejected"}},
        ],
    )
    def test_an_envelope_that_a_peer_would_refuse_is_an_invalid_request(self, changes: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequest) as caught:
            build(draft(**changes), NOW)
        assert caught.value.message

    @pytest.mark.parametrize(
        "changes",
        [
            {"body": {"text": "x", "more": 1}},
            {"body": {"text": "x", "artifacts": [{"uri": "a"}]}, "ext": {"a": 1}},
            {"body": {"text": 1}},
            {"body": {"text": "x", "deep": json.loads("[" * 70 + "]" * 70)}},
            {"body": {"text": "{" * 70}},
            {"kind": "trace", "body": {"state": "working", "result": [1]}, "ext": {}},
            {"kind": "receipt", "body": {"for_id": "m", "status": "accepted"}, "reply_to": "m", "surface": "direct"},
            {"kind": "greet", "to": None, "surface": None, "work_id": None, "body": {"peer_card": {}}},
            {"trace_id": "", "after": Predecessor("msg_0", NOW + 60)},
            {"after": Predecessor("msg_0", NOW + 60), "ext": {"a": 1}},
        ],
    )
    def test_an_own_envelope_and_its_bytes_are_judged_alike(self, changes: dict[str, Any]) -> None:
        ours = draft(**changes)
        try:
            built: object = build(ours, NOW)
        except InvalidRequest as error:
            built = error.message
        try:
            read: object = parse(encoded(ours), NOW)
        except ProtocolError as error:
            read = f"{error.detail} ({error.reason})"
        assert built == read

    def test_envelope_at_size_limit_is_built_and_one_byte_over_is_not(self) -> None:
        rest = MAX_ENVELOPE_BYTES - len(build(draft(), NOW).raw) + 1
        assert len(build(draft(body={"text": "x" * rest}), NOW).raw) == MAX_ENVELOPE_BYTES
        with pytest.raises(InvalidRequest, match="over the limit") as caught:
            build(draft(body={"text": "x" * (rest + 1)}), NOW)
        assert "artifacts" in caught.value.hint
        with pytest.raises(InvalidRequest, match="over the limit"):
            encoded(draft(body={"text": "x" * (rest + 1)}))


class TestOwnCopy:
    def test_opening_records_the_work(self) -> None:
        stored, opened = apply_own(say(), None, None)
        assert stored == StoreEnvelope("out", "unverified", Transition("opened", "submitted"))
        assert isinstance(opened, Open)
        assert (opened.work.initiator, opened.work.target) == (A, B)

    def test_a_broadcast_say_opens_nothing(self) -> None:
        assert [type(effect) for effect in apply_own(say(to=None), None, None)] == [StoreEnvelope]

    def test_a_work_is_opened_only_with_an_id_of_the_emitted_grammar(self) -> None:
        for unfit in ("my work", "work_é", "work_" + "x" * 65):
            with pytest.raises(InvalidRequest, match="work_id"):
                apply_own(say(work_id=unfit), None, None)
        known = work(work_id="my work")
        assert len(apply_own(say(id="msg_2", work_id="my work"), known, None)) == 2  # theirs, continued

    def test_a_work_for_the_own_id_is_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="ourselves"):
            apply_own(say(to=A), None, None)

    def test_our_trace_updates_our_copy(self) -> None:
        stored, moved = apply_own(trace("completed"), work(state="working"), None)
        assert stored == StoreEnvelope("out", "unverified", Transition("advanced", "completed"))
        assert isinstance(moved, Advance)
        assert (moved.before.state, moved.after.state, moved.after.terminal_sender) == ("working", "completed", B)

    @pytest.mark.parametrize(
        ("envelope", "known", "code"),
        [
            (trace("working"), None, "not_found"),
            (trace("working"), work(state="failed"), "work_closed"),
            (say(id="msg_2"), work(state="completed"), "work_closed"),
            (trace("working", thread_id="thread_other"), work(), "work_container_mismatch"),
            (say(id="msg_2", thread_id="thread_other"), work(), "work_container_mismatch"),
            (say(id="msg_2", to=C), work(), "actor_not_allowed"),
            (say(id="msg_2", sender=C), work(), "actor_not_allowed"),
            (receipt("accepted", sender=A, to=B), work(), "actor_not_allowed"),
            (trace("submitted"), work(), "invalid_transition"),
        ],
    )
    def test_a_send_that_our_copy_forbids_is_refused_with_a_hint(
        self, envelope: Any, known: WorkView | None, code: str
    ) -> None:
        with pytest.raises(Refused) as caught:
            apply_own(envelope, known, None)
        assert caught.value.error_code == code
        assert WORK in caught.value.message
        assert caught.value.hint


class TestOwnRooms:
    def direct(self, room: str = ROOM, **changes: Any) -> Any:
        return say(**{"surface": "direct", "thread_id": ..., "direct_id": room, "work_id": ..., **changes})

    def test_the_derived_room_is_bound_once(self) -> None:
        bound = Binding((A, B), authoritative=True)
        assert apply_own(self.direct(), None, None)[0] == Bind(bound)
        assert apply_own(self.direct(), None, bound) == (StoreEnvelope("out", "unverified", None, (A, B)),)

    def test_an_opaque_room_is_used_only_if_the_other_peer_introduced_it(self) -> None:
        with pytest.raises(InvalidRequest, match="direct_id"):
            apply_own(self.direct(OPAQUE), None, None)
        with pytest.raises(InvalidRequest, match="direct_id"):
            apply_own(self.direct(OPAQUE), None, Binding((B, C), authoritative=False))
        assert apply_own(self.direct(OPAQUE), None, Binding((A, B), authoritative=False))

    def test_a_room_needs_another_peer(self) -> None:
        for to in (None, A):
            with pytest.raises(InvalidRequest, match="to"):
                apply_own(self.direct(to=to), None, None)
