"""Sentient messages delivered from envelopes: carried ones, and native ones as messages (adapters.md, sentient)."""

from typing import Any

import msgspec
import pytest

from aghbus.protocol.agh.capability_digest import capability_digest
from aghbus.protocol.agh.lifecycle import after, opened_by, transition
from aghbus.protocol.agh.send import build
from aghbus.protocol.formats.common import say, trace
from aghbus.protocol.formats.model import BridgedEnvelope
from aghbus.protocol.formats.sentient.message import check_shape
from tests.support.seed_examples import replaced
from tests.support.sentient_peers import NOW, OBJECTIVES, SentientPeer, rules
from tests.support.wire import RECORD

SESSION = OBJECTIVES["metadata"]["session_id"]
ENDS = {"next_agent/name": None}


def carried(message: Any, **more: Any) -> BridgedEnvelope:
    """An envelope of `obj` to `goal` that carries `message`, as `goal` receives it."""
    context = SentientPeer("obj").context()
    draft = say(
        context,
        "goal",
        "msg_x",
        "thread_x_y",
        {"text": "native words"},
        work_id="work_x",
        ext={"sentient.message": message},
    )
    return BridgedEnvelope(envelope=build(msgspec.structs.replace(draft, **more), NOW))


@pytest.mark.parametrize(
    ("message", "more", "rule"),
    [
        (replaced(OBJECTIVES, {"agent/name": "goal_agent"}), {}, "/agent/name"),
        (replaced(OBJECTIVES, {"agent/name": "unknown agent"}), {}, "/agent/name"),
        (replaced(OBJECTIVES, {"status/code": "pending"}), {}, "/status/code"),
        (replaced(OBJECTIVES, ENDS), {}, "/status/code"),
        (OBJECTIVES, {"work_id": None}, "/status/code"),
        (replaced(OBJECTIVES, {"status/code": "great"}), {}, "/status/code"),
        (replaced(OBJECTIVES, {"metadata/sequence_number": 2}), {}, "/metadata/parent_message_id"),
        (replaced(OBJECTIVES, {"resources/source_refs": []}), {}, "/resources/storage_refs/0/source_ref_id"),
        ("text", {}, ""),
        (2**60, {}, ""),
    ],
)
def test_an_inconsistent_carried_message_counts_as_native(message: Any, more: dict[str, Any], rule: str) -> None:
    peer = SentientPeer("goal")
    delivered = peer.adapter.deliver(carried(message, **more), peer.context(), peer)
    assert delivered.native
    assert delivered.message is not None
    assert delivered.message["output"]["content"] == "native words"
    assert [(one.path, one.rule, one.severity) for one in delivered.findings] == [(rule, "carried_message", "warning")]


def test_a_carried_message_has_its_warnings_as_of_its_submission() -> None:
    peer = SentientPeer("goal")
    late = replaced(OBJECTIVES, {"audit/reasoning": None, "timestamp/executed_at": "2026-01-27T06:00:00Z"})
    delivered = peer.adapter.deliver(carried(late), peer.context(NOW + 10**6), peer)
    assert (delivered.message, delivered.native, delivered.foreign_id, delivered.scope) == (
        late,
        False,
        late["message_id"],
        SESSION,
    )
    assert rules(delivered.findings) == [("/audit/reasoning", "reasoning"), ("/timestamp/executed_at", "clock_skew")]
    assert delivered.findings == SentientPeer("obj").plan(late).findings


def test_message_from_the_artifact_store_replaces_the_one_in_ext() -> None:
    peer = SentientPeer("goal")
    arrival = msgspec.structs.replace(carried(None, ext={}), carried=OBJECTIVES)
    assert peer.adapter.deliver(arrival, peer.context(), peer).message == OBJECTIVES


def native(kind: str, body: dict[str, Any], **more: Any) -> BridgedEnvelope:
    """A native envelope of `goal` to `obj` on a work that `obj` opened, with what it did to the work."""
    ours, theirs = SentientPeer("obj").context(), SentientPeer("goal").context()
    opening = build(say(ours, "goal", "msg_open", "thread_x_y", {"text": "x"}, work_id="work_x"), NOW)
    draft = trace(theirs, opened_by(opening), "msg_n", body, **more)
    envelope = build(msgspec.structs.replace(draft, kind=kind), NOW)
    work = opened_by(opening)
    verdict = transition(work, envelope)
    return BridgedEnvelope(envelope=envelope, work=after(work, envelope, verdict), outcome=verdict.outcome)


@pytest.mark.parametrize(
    ("kind", "body", "status", "content", "fault"),
    [
        ("say", {"text": "hi", "intent": "notice"}, "success", "hi", None),
        ("trace", {"state": "completed", "result": {"a": 1}, "message": "done"}, "success", {"a": 1}, None),
        ("trace", {"state": "completed", "result": {"partial": True}}, "partial", {"partial": True}, None),
        ("trace", {"state": "completed"}, "success", None, None),
        ("trace", {"state": "completed", "result": 7}, "success", {"result": 7}, None),
        ("trace", {"state": "completed", "result": [1]}, "success", [1], None),
        ("trace", {"state": "failed", "message": "broke"}, "failed", None, "PROCESSING_ERROR"),
        ("trace", {"state": "canceled"}, "failed", None, "PROCESSING_ERROR"),
        ("trace", {"state": "needs_input", "message": "which?"}, "pending", None, None),
        ("receipt", {"for_id": "msg_open", "status": "canceled"}, "failed", None, "PROCESSING_ERROR"),
        ("receipt", {"for_id": "m", "status": "rejected", "reason_code": "expired"}, "failed", None, "TIMEOUT"),
        ("receipt", {"for_id": "m", "status": "rejected", "reason_code": "busy"}, "failed", None, "PROCESSING_ERROR"),
    ],
)
def test_native_envelopes_become_valid_messages(kind: str, body: Any, status: str, content: Any, fault: Any) -> None:
    peer = SentientPeer("obj")
    delivered = peer.adapter.deliver(native(kind, body), peer.context(), peer)
    message = delivered.message
    assert message is not None
    assert delivered.native
    assert check_shape(message) == ()
    assert (message["status"]["code"], message["output"]["content"]) == (status, content)
    assert (message["error"]["error_code"], message["error"]["has_error"]) == (fault, fault is not None)
    assert message["error"]["recoverable"] is (False if fault is None else None)
    assert message["agent"] == {"name": "goal_agent", "type": None}
    assert message["message_id"] == "msg_n"
    assert message["timestamp"] == {"executed_at": "2026-01-27T06:30:54Z", "timezone": "UTC"}
    assert (delivered.foreign_id, delivered.scope) == ("msg_n", "thread_x_y")
    assert message["audit"]["reasoning"] is None


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("trace", {"state": "working", "message": "half"}),
        ("receipt", {"for_id": "msg_open", "status": "accepted"}),
        ("receipt", {"for_id": "msg_open", "status": "duplicate", "reason_code": "duplicate"}),
    ],
)
def test_progress_and_receipts_that_end_nothing_say_nothing(kind: str, body: Any) -> None:
    peer = SentientPeer("obj")
    assert peer.adapter.deliver(native(kind, body), peer.context(), peer).message is None


def test_a_capability_is_delivered_as_its_document() -> None:
    peer = SentientPeer("obj")
    document = {**RECORD, "digest": capability_digest(RECORD)}
    message = peer.adapter.deliver(native("capability", {"capability": document}), peer.context(), peer).message
    assert message is not None
    assert message["output"] == {"content": document, "content_type": "capability"}
    assert check_shape(message) == ()


def test_numbers_that_the_format_cannot_hold_become_text_with_a_warning() -> None:
    peer = SentientPeer("obj")
    delivered = peer.adapter.deliver(native("trace", {"state": "completed", "result": [2**60]}), peer.context(), peer)
    assert delivered.message is not None
    assert delivered.message["output"]["content"] == "[1152921504606846976]"
    assert rules(delivered.findings) == [("/output/content", "not_carried")]
