"""Envelopes for the tests of the pure protocol: wire documents written out by hand, and strategies of valid ones."""

import json
from typing import Any, Final

import msgspec
from hypothesis import strategies as st

from aghbus.protocol.agh.capability_digest import capability_digest
from aghbus.protocol.agh.envelope import Envelope, parse
from aghbus.protocol.agh.errors import Malformed, ProtocolError
from aghbus.protocol.agh.partial_parse import readable

NOW: Final = 1_776_366_200
WORKSPACE: Final = "ws_alpha"
CHANNEL: Final = "builders"
THREAD: Final = "thread_release_check"
WORK: Final = "work_1"
A: Final = "ops"
B: Final = "patch-worker"
C: Final = "outsider"
JOINED: Final = frozenset({(WORKSPACE, CHANNEL)})

Document = dict[str, Any]

CARD: Final[Document] = {
    "peer_id": A,
    "profiles_supported": ["agh-network/v0"],
    "capabilities": ["code.patch", "test.run"],
    "artifacts_supported": ["capability"],
    "trust_modes_supported": ["unverified"],
}
RECORD: Final[Document] = {"id": "fix-tests", "summary": "Repair failing tests.", "outcome": "A patch."}
BODIES: Final[dict[str, Document]] = {
    "greet": {"peer_card": CARD},
    "whois": {"type": "request", "query": "test.run"},
    "say": {"text": "Run the smoke test."},
    "capability": {"capability": {**RECORD, "digest": capability_digest(RECORD)}},
    "receipt": {"for_id": "msg_open", "status": "accepted"},
    "trace": {"state": "working"},
}
DISCOVERY: Final = ("greet", "whois")
CONVERSATION: Final = ("say", "capability", "receipt", "trace")


def wire(kind: str, /, **changes: Any) -> Document:
    """A valid wire document of `kind` from A to B on work 1 (greet and whois: broadcast), with fields replaced.

    `sender` replaces `from`; a value of `...` removes the field.
    """
    document: Document = {
        "protocol": "agh-network/v0",
        "id": "msg_1",
        "workspace_id": WORKSPACE,
        "kind": kind,
        "channel": CHANNEL,
        "from": A,
        "to": None,
        "ts": NOW,
        "body": BODIES[kind],
        "proof": None,
    }
    if kind in CONVERSATION:
        document |= {"surface": "thread", "thread_id": THREAD, "to": B, "work_id": WORK}
    if "sender" in changes:
        changes["from"] = changes.pop("sender")
    document |= changes
    return {field: value for field, value in document.items() if value is not ...}


def dump(document: Document) -> bytes:
    """The document as a peer would send it."""
    return json.dumps(document, ensure_ascii=False).encode()


def judged(raw: bytes) -> Envelope | tuple[str, str]:
    """The envelope in `raw`, without its bytes, or reason and detail of its refusal."""
    try:
        return msgspec.structs.replace(parse(raw, NOW), raw=b"")
    except ProtocolError as error:
        return error.reason, error.detail


def with_unknown_member(raw: bytes) -> bytes:
    """The same envelope, which the parser has to decode completely: the decoder of the usual members refuses others.

    `raw` is a JSON object with members.
    """
    return raw.rstrip()[:-1] + b', "x_unknown": 0}'


def envelope(kind: str, /, **changes: Any) -> Envelope:
    """The parsed envelope of `wire(kind, **changes)`."""
    return parse(dump(wire(kind, **changes)), NOW)


def say(**changes: Any) -> Envelope:
    """A say from A to B on work 1."""
    return envelope("say", **changes)


def receipt(status: str, reason: str | None = None, /, *, for_id: str = "msg_1", **changes: Any) -> Envelope:
    """A receipt from B to A on work 1."""
    body = {"for_id": for_id, "status": status, "reason_code": reason}
    return envelope("receipt", **{"sender": B, "to": A, "id": f"msg_{status}", "body": body, **changes})


def trace(state: str, /, **changes: Any) -> Envelope:
    """A trace from B to A on work 1."""
    return envelope("trace", **{"sender": B, "to": A, "id": f"msg_{state}", "body": {"state": state}, **changes})


_LOWER: Final = "abcdefghijklmnopqrstuvwxyz"
_TAIL: Final = _LOWER + "0123456789_-"


def _matching(first: str, rest: str, low: int, high: int, prefix: str = "") -> st.SearchStrategy[str]:
    return st.builds(
        lambda head, tail: prefix + head + tail, st.sampled_from(first), st.text(rest, min_size=low, max_size=high)
    )


texts: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
peers: Final = _matching(_LOWER, _TAIL + ".", 0, 30)
channels: Final = _matching(_LOWER, _TAIL, 0, 63)
workspaces: Final = st.text(_TAIL + "ABC~ü日", min_size=1, max_size=30)
message_ids: Final = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=60)
threads: Final = _matching(_LOWER, _TAIL, 2, 95, "thread_")
directs: Final = st.text("abcdef0123456789", min_size=32, max_size=32).map(lambda digits: "direct_" + digits)
works: Final = message_ids.filter(lambda value: "/" not in value and "\\" not in value and len(value.encode()) <= 128)
json_values: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects: Final = st.dictionaries(texts, json_values, max_size=3)
_lists: Final = st.lists(texts, max_size=4)


@st.composite
def cards(draw: st.DrawFn, peer: str) -> Document:
    """A Peer Card of `peer`."""
    card: Document = {"peer_id": peer}
    for field in ("profiles_supported", "capabilities", "artifacts_supported", "trust_modes_supported"):
        card[field] = draw(_lists)
    return card | draw(_some({"display_name": st.none() | texts, "ext": st.none() | objects, "future": json_values}))


@st.composite
def capability_records(draw: st.DrawFn) -> Document:
    """A capability record without its digest, in any order of keys."""
    words = texts.filter(lambda text: text.strip() != "")
    record: Document = {field: draw(words) for field in ("id", "summary", "outcome")}
    lists = ("context_needed", "artifacts_expected", "execution_outline", "constraints", "examples")
    record |= draw(_some({field: st.none() | _lists for field in lists} | {"version": st.none() | texts}))
    record |= draw(_some({"requirements": st.lists(st.text("abcé日", min_size=1), unique=True, max_size=4)}))
    return dict(draw(st.permutations(list(record.items()))))


@st.composite
def bodies(draw: st.DrawFn, kind: str, sender: str) -> Document:
    """A valid body of `kind`, with unknown fields now and then."""
    body: Document
    if kind == "greet":
        body = {"peer_card": draw(cards(sender))} | draw(_some({"summary": st.none() | texts}))
    elif kind == "whois":
        request = {"type": "request"} | draw(_some({"query": st.none() | texts, "peer_card": st.none()}))
        body = draw(st.sampled_from([request, {"type": "response", "peer_card": draw(cards(sender))}]))
    elif kind == "say":
        said = {"text": "x" + draw(texts)}
        body = said | draw(
            _some({"intent": st.none() | texts, "artifacts": st.none() | st.lists(json_values, max_size=3)})
        )
    elif kind == "capability":
        record = draw(capability_records())
        body = {"capability": {**record, "digest": capability_digest(record)}}
    elif kind == "receipt":
        status, reason = draw(st.sampled_from(_RECEIPTS))
        body = {"for_id": draw(message_ids), "status": status, "reason_code": reason}
        body |= draw(_some({"detail": st.none() | texts}))
    else:
        state = draw(st.sampled_from(["submitted", "working", "needs_input", "completed", "failed", "canceled"]))
        refs = st.none() | st.lists(json_values, max_size=3)
        body = {"state": state} | draw(
            _some({"message": st.none() | texts, "result": json_values, "artifact_refs": refs})
        )
    return body | draw(_some({"x_future": json_values}))


_RECEIPTS: Final = [
    ("accepted", None),
    ("rejected", "busy"),
    ("duplicate", "duplicate"),
    ("expired", "expired"),
    ("unsupported", "unsupported_kind"),
    ("canceled", None),
    ("canceled", "internal"),
]


def _some(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Document]:
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def documents(draw: st.DrawFn, kind: str | None = None) -> Document:
    """A valid wire document of any kind, fresh at NOW: optional fields absent, null or set; unknown fields; any key order."""
    chosen = kind or draw(st.sampled_from(list(BODIES)))
    sender = draw(peers)
    document: Document = {
        "protocol": "agh-network/v0",
        "id": draw(message_ids),
        "workspace_id": draw(workspaces),
        "kind": chosen,
        "channel": draw(channels),
        "from": sender,
        "ts": NOW - draw(st.integers(-300, 300)),
        "body": draw(bodies(chosen, sender)),
    }
    optional = {field: st.none() | message_ids for field in ("trace_id", "causation_id")}
    lifetime = {"expires_at": st.none() | st.integers(NOW + 1, NOW + 10**6)}
    document |= draw(
        _some(optional | lifetime | {"ext": st.none() | objects, "proof": st.none(), "x_new": json_values})
    )
    answers = chosen == "whois" and document["body"]["type"] == "response"
    document |= {"reply_to": draw(message_ids)} if answers else draw(_some({"reply_to": st.none() | message_ids}))
    if chosen != "greet":
        document |= draw(_some({"to": st.none() | peers}))
    document |= draw(_containers(chosen))
    return dict(draw(st.permutations(list(document.items()))))


@st.composite
def _containers(draw: st.DrawFn, kind: str) -> Document:
    if kind in DISCOVERY:
        return draw(_some({field: st.none() for field in ("surface", "thread_id", "direct_id", "work_id")}))
    surface = draw(st.sampled_from(["thread", "direct"]))
    used, unused = ("thread_id", "direct_id") if surface == "thread" else ("direct_id", "thread_id")
    placed = {"surface": surface, used: draw(threads if surface == "thread" else directs)} | draw(
        _some({unused: st.none()})
    )
    return placed | (
        {"work_id": draw(works)} if kind in ("receipt", "trace") else draw(_some({"work_id": st.none() | works}))
    )


def legible(raw: bytes) -> dict[str, Any] | None:
    """The document that a refusal of these bytes can read; None for bytes that are none."""
    return readable(raw, Malformed("anything"))
