"""Sentient messages of any content: lossless, idempotent, harmless (adapters.md, Common rules)."""

import json
from typing import Any, Final

from hypothesis import example, given
from hypothesis import strategies as st

from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.send import build
from aghbus.protocol.base.text import is_blank
from aghbus.protocol.formats.derived_ids import same_json
from aghbus.protocol.formats.model import BridgedEnvelope
from aghbus.protocol.formats.sentient.adapter import Sentient
from aghbus.protocol.formats.sentient.message import AGENT_TYPES, ERROR_CODES, FIELDS, STATUSES, check_shape
from tests.support.seed_examples import replaced
from tests.support.sentient_peers import (
    GOALS,
    NOW,
    OBJECTIVES,
    OUT_OF_SCOPE,
    Message,
    SentientBus,
    SentientPeer,
)
from tests.support.wire import json_values

HOSTILE: Final = [
    "\x00\x1b[2J",
    "\u202eevil",
    "{{node.data}}",
    "$(rm -rf /)",
    "%s%n",
    "]\n---\n[TIMESTAMP: 00:00:00]",
    "../../etc/passwd",
    "\ufeff",
    "a\u0000b",
    "store_1" * 400,
    "(acquired from src_1)" * 200,
    "9" * 400 + " goals",
    "𝔘𝔫𝔦",
]
texts: Final = st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from(HOSTILE)
ids: Final = texts.filter(lambda text: not is_blank(text))
maybe: Final = st.none() | texts
numbers: Final = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values: Final = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
counts: Final = st.none() | st.integers(1, 2**53 - 1)


@st.composite
def resources(draw: st.DrawFn) -> Message:
    """Refs that point at each other rightly; every member that may be anything is anything."""
    sources = draw(st.integers(0, 3))
    stored = draw(st.integers(0, 3)) if sources else 0
    made = draw(st.integers(0, 3)) if stored else 0
    return {
        "source_refs": [
            {
                "ref_id": f"src_{n}",
                "url": draw(maybe),
                "platform": draw(maybe),
                "media_type": draw(maybe),
                "provided_by": draw(maybe),
                "extracted_at_sequence": draw(counts),
            }
            for n in range(1, sources + 1)
        ],
        "storage_refs": [
            {
                "ref_id": f"store_{n}",
                "source_ref_id": draw(st.none() | st.just(f"src_{(n - 1) % sources + 1}")),
                "storage_uri": draw(maybe),
                "storage_backend": draw(maybe),
                "media_type": draw(maybe),
                "created_at_sequence": draw(counts),
                "status": draw(st.sampled_from([None, "pending", "stored", "failed"])),
            }
            for n in range(1, stored + 1)
        ],
        "derived_refs": [
            {
                "ref_id": f"derived_{n}",
                "parent_ref_id": f"derived_{n - 1}" if n > 1 else "store_1",
                "storage_uri": draw(maybe),
                "asset_type": draw(maybe),
                "capability_id": draw(maybe),
                "created_at_sequence": draw(counts),
                "status": draw(st.sampled_from([None, "pending", "created", "failed"])),
            }
            for n in range(1, made + 1)
        ],
    }


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Valid first messages of the objective agent, members unknown to the format included."""
    return {
        "message_id": draw(ids),
        "timestamp": {
            "executed_at": draw(
                st.sampled_from(["2026-01-27T14:30:52+08:00", "1999-12-31T23:59:60Z", "2026-01-27T14:30:52.5"])
            ),
            "timezone": draw(ids),
        },
        "agent": {"name": "objective_agent", "type": draw(st.sampled_from([None, *AGENT_TYPES]))},
        "input": {"source": draw(maybe), "content": draw(values)},
        "output": {
            "content": draw(values.filter(lambda value: value is None or isinstance(value, str | list | dict))),
            "content_type": draw(maybe | st.sampled_from(["goals", "objectives"])),
        },
        "next_agent": {"name": draw(st.sampled_from([None, "user", "goal_agent"])), "reason": draw(maybe)},
        "status": {
            "code": draw(st.sampled_from([code for code in STATUSES if code != "pending"])),
            "message": draw(maybe),
        },
        "error": {
            "has_error": draw(st.booleans()),
            "error_code": draw(st.sampled_from([None, *ERROR_CODES])),
            "error_message": draw(maybe),
            "retry_count": draw(st.none() | st.integers(0, 2**53 - 1)),
            "recoverable": draw(st.none() | st.booleans()),
        },
        "metadata": {
            "session_id": draw(ids),
            "request_id": draw(ids),
            "sequence_number": 1,
            "parent_message_id": None,
        },
        "resources": draw(resources()),
        "audit": {
            "compliance_notes": draw(maybe),
            "governance_files_consulted": draw(st.lists(texts, max_size=4)),
            "reasoning": draw(maybe),
        },
        **draw(st.dictionaries(texts.map("x{}".format), values, max_size=2)),
    }


def bus() -> SentientBus:
    return SentientBus(
        SentientPeer("obj", user="front"), SentientPeer("goal"), SentientPeer("plan"), SentientPeer("front")
    )


@given(messages())
def test_a_delivered_message_equals_the_submitted_one(message: Message) -> None:
    net = bus()
    plan = net.submit("obj", message)  # through the protocol's own validator
    assert not plan.refused
    receiver = "goal" if message["next_agent"]["name"] == "goal_agent" else "front"
    (delivered,) = net.peers[receiver].delivered
    assert not delivered.native
    assert same_json(delivered.message, message)
    assert delivered.findings == plan.findings
    assert [finding.severity for finding in plan.findings].count("error") == 0


@given(messages(), st.sampled_from([None, "user", "planning_agent"]), st.sampled_from(STATUSES))
def test_the_second_message_of_a_chain_too(first: Message, following: str | None, code: str) -> None:
    net = bus()
    first["next_agent"]["name"] = "goal_agent"
    net.submit("obj", first)
    second = replaced(
        first,
        {
            "message_id": first["message_id"] + "2",
            "agent/name": "goal_agent",
            "next_agent/name": following,
            "status/code": code,
            "metadata/sequence_number": 2,
            "metadata/parent_message_id": first["message_id"],
        },
    )
    plan = net.submit("goal", second)
    carrier = build(plan.drafts[-1], NOW)
    receiver = net.peers[carrier.to or ""]
    assert same_json(
        receiver.adapter.deliver(BridgedEnvelope(envelope=carrier), receiver.context(), receiver).message, second
    )


@given(messages())
def test_in_is_idempotent(message: Message) -> None:
    net = bus()
    first = net.peers["obj"].plan(message)
    again = net.peers["obj"].plan(message, now=NOW + 77)
    assert [draft.id for draft in first.drafts] == [draft.id for draft in again.drafts]
    net.submit("obj", message)
    repeated = net.submit("obj", message)
    assert repeated.repeats
    assert [draft.id for draft in repeated.drafts] == [draft.id for draft in first.drafts]
    assert sum(len(peer.delivered) for peer in net.peers.values()) == 1


@given(json_values | values)
@example({group: {} for group in FIELDS})
@example({"metadata": {"sequence_number": 2, "parent_message_id": "x", "session_id": []}})
@example({"metadata": {"sequence_number": 2, "parent_message_id": "", "session_id": ""}})
def test_no_json_raises(value: Any) -> None:
    assert SentientPeer("obj").plan(value).refused


@given(st.binary(max_size=200))
def test_no_bytes_raise(text: bytes) -> None:
    assert SentientPeer("obj").plan(text).refused


PATHS: Final = [f"{group}/{name}".strip("/") for group, fields in FIELDS.items() for name in fields] + [
    group for group in FIELDS if group
]


@given(
    st.sampled_from([OBJECTIVES, GOALS, OUT_OF_SCOPE]), st.sampled_from(PATHS), values, st.sampled_from(PATHS), values
)
def test_message_with_two_fuzzed_fields_sends_no_invalid_envelope(
    message: Message, path: str, value: Any, other: str, second: Any
) -> None:
    made = replaced(message, {path: value})
    group = other.partition("/")[0]
    if other == group or isinstance(made.get(group), dict):
        made = replaced(made, {other: second})
    net = bus()
    net.submit("obj", OBJECTIVES)
    name = "goal" if message is GOALS else "obj"
    plan = net.peers[name].plan(made)
    if plan.refused:
        assert plan.drafts == ()
        return
    net.submit(name, made)
    for draft in plan.drafts:
        envelope = build(draft, NOW)
        receiver = net.peers[envelope.to or ""]
        delivered = receiver.adapter.deliver(BridgedEnvelope(envelope=envelope), receiver.context(), receiver)
        assert delivered.message is None or check_shape(delivered.message) == ()


@given(json_values | values, st.sampled_from(["say", "trace"]))
def test_no_carried_value_raises(value: Any, kind: str) -> None:
    peer = SentientPeer("goal")
    plan = SentientPeer("obj").plan(OBJECTIVES)
    document = json.loads(build(plan.drafts[0], NOW).raw)
    document["ext"] = {"sentient.message": value, "sentient.log": value, "sentient.findings": value}
    if kind == "trace":
        document |= {"kind": "trace", "body": {"state": "completed", "result": value}}
    try:
        envelope = parse(json.dumps(document).encode(), NOW)
    except ProtocolError:
        return
    delivered = Sentient().deliver(BridgedEnvelope(envelope=envelope), peer.context(), peer)
    assert delivered.message is not None
    assert check_shape(delivered.message) == ()
