"""The bodies of the six kinds and the Peer Card: types and validation (seed 002, spec section 2).

`BODIES` has a reader of each kind. Unknown fields are ignored; null in an optional field means absent.
"""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from aghbus.protocol.agh.capability_digest import capability_digest
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.agh.decoding import decoder as json_decoder
from aghbus.protocol.agh.errors import REASON_CODES, Malformed, VerificationFailed
from aghbus.protocol.agh.identifiers import is_message_id, is_peer
from aghbus.protocol.agh.limits import MAX_CARD_ENTRY_BYTES, MAX_LIST_ITEMS
from aghbus.protocol.base.text import WHITE_SPACE, byte_length, trim

RECEIPT_STATUSES: Final = frozenset(["accepted", "rejected", "duplicate", "expired", "unsupported", "canceled"])
TRACE_STATES: Final = frozenset(["submitted", "working", "needs_input", "completed", "failed", "canceled"])
REASON_REQUIRED: Final = frozenset(["rejected", "duplicate", "expired", "unsupported"])
CARD_LISTS: Final = ("profiles_supported", "capabilities", "artifacts_supported", "trust_modes_supported")

_T = TypeVar("_T")
_NULL: Final = Raw(b"null")
_DOTTED: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")


class PeerCard(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Identity and abilities of a peer. List entries are trimmed and not blank; `ext` holds e.g. the capabilities brief."""

    peer_id: str
    display_name: str | None = None
    profiles_supported: tuple[str, ...] = msgspec.field(default_factory=tuple)
    capabilities: tuple[str, ...] = msgspec.field(default_factory=tuple)
    artifacts_supported: tuple[str, ...] = msgspec.field(default_factory=tuple)
    trust_modes_supported: tuple[str, ...] = msgspec.field(default_factory=tuple)
    ext: dict[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        """The card as a JSON object: the four lists always present (seed 002, greet annotation)."""
        card: dict[str, Any] = {"peer_id": self.peer_id}
        if self.display_name:
            card["display_name"] = self.display_name
        card["profiles_supported"] = list(self.profiles_supported)
        card["capabilities"] = list(self.capabilities)
        card["artifacts_supported"] = list(self.artifacts_supported)
        card["trust_modes_supported"] = list(self.trust_modes_supported)
        if self.ext:
            card["ext"] = self.ext
        return card


class Greet(msgspec.Struct, frozen=True):
    """An announcement of a peer: its card and an optional summary."""

    card: PeerCard
    summary: str | None = None


class Whois(msgspec.Struct, frozen=True):
    """`type` is `request` (with `query`, empty matches all) or `response` (with `card`)."""

    type: str
    query: str = ""
    card: PeerCard | None = None


class Say(msgspec.Struct, frozen=True):
    """Conversation text; `artifacts` are JSON descriptors, each as received."""

    text: str
    intent: str | None = None
    artifacts: tuple[Raw, ...] = ()


class Capability(msgspec.Struct, frozen=True):
    """One capability document as received; its digest has been checked."""

    id: str
    digest: str
    document: dict[str, Any]


class Receipt(msgspec.Struct, frozen=True):
    """Acknowledgement of the envelope `for_id`."""

    for_id: str
    status: str
    reason_code: str | None = None
    detail: str | None = None


def asked_capability(body: Mapping[str, Any], announced: Container[str]) -> str | None:
    """The capability that an opening asks for: that of the record it carries, else its intent.

    An intent is any text ("request"): it names a capability when it is `announced`, or has the form of an id with a dot.
    """
    record, intent = body.get("capability"), body.get("intent")
    if isinstance(record, dict) and isinstance(record.get("id"), str):
        return str(record["id"])
    if isinstance(intent, str) and (intent in announced or _DOTTED.fullmatch(intent)):
        return intent
    return None


def receipt_body(for_id: str, status: str, reason: str | None = None, detail: str | None = None) -> dict[str, Any]:
    """The body of a receipt to the envelope `for_id`; `reason` is its reason code (spec section 2, receipt)."""
    members = {"for_id": for_id, "status": status, "reason_code": reason, "detail": detail}
    return {name: value for name, value in members.items() if value is not None}


class Trace(msgspec.Struct, frozen=True):
    """State, progress or outcome of a work; `result` is any JSON value as received."""

    state: str
    message: str | None = None
    result: Raw | None = None
    artifact_refs: tuple[Raw, ...] = ()


Body = Greet | Whois | Say | Capability | Receipt | Trace
BodyWire = Any
"""What `BodyReader.decode` returns: the members of a body with their types checked, but not their values."""


class _CardWire(msgspec.Struct):
    peer_id: str
    profiles_supported: list[str]
    capabilities: list[str]
    artifacts_supported: list[str]
    trust_modes_supported: list[str]
    display_name: str | None = None
    ext: dict[str, Any] | None = None


class _GreetWire(msgspec.Struct):
    peer_card: Raw
    summary: str | None = None


class _WhoisWire(msgspec.Struct):
    type: str
    query: str | None = None
    peer_card: Raw = _NULL


class _SayWire(msgspec.Struct):
    text: str
    intent: str | None = None
    artifacts: list[Raw] | None = None


class _CapabilityWire(msgspec.Struct):
    capability: dict[str, Any]


class _ReceiptWire(msgspec.Struct):
    for_id: str
    status: str
    reason_code: str | None = None
    detail: str | None = None


class _TraceWire(msgspec.Struct):
    state: str
    message: str | None = None
    result: Raw = _NULL
    artifact_refs: list[Raw] | None = None


class _PlainSay(_SayWire, forbid_unknown_fields=True):
    artifacts: None = None


class _PlainReceipt(_ReceiptWire, forbid_unknown_fields=True):
    pass


class _PlainTrace(_TraceWire, forbid_unknown_fields=True):
    result: None = None  # type: ignore[assignment]
    artifact_refs: None = None


def _decoder(wire: type[_T], field: str = "body") -> Callable[[Raw | bytes], _T]:
    strict = json_decoder(wire)

    def decode(raw: Raw | bytes) -> _T:
        try:
            return strict(raw)
        except msgspec.ValidationError:
            # Of duplicate keys the last wins (spec section 1), but the strict decoder also rejects an invalid earlier one.
            try:
                return strict(msgspec.json.encode(decode_json(raw)))
            except msgspec.ValidationError as error:
                raise _malformed(error, field) from None

    return decode


_decode_card = _decoder(_CardWire, "body.peer_card")


def _read_greet(wire: _GreetWire | Greet, sender: str) -> Greet:
    if isinstance(wire, Greet):  # what this sender has sent last, and sends again
        return wire
    return Greet(_card(wire.peer_card, sender), wire.summary)


def _read_whois(wire: _WhoisWire | Whois, sender: str) -> Whois:
    if isinstance(wire, Whois):
        return wire
    if wire.type == "request":
        if wire.peer_card != _NULL:
            raise Malformed("a request must not carry a card", "body.peer_card")
        return Whois("request", wire.query or "")
    if wire.type != "response":
        raise Malformed("must be request or response", "body.type")
    if wire.peer_card == _NULL:
        raise Malformed("a response must carry a card", "body.peer_card")
    return Whois("response", wire.query or "", _card(wire.peer_card, sender))


def _read_say(wire: _SayWire, _sender: str) -> Say:
    if not wire.text.strip(WHITE_SPACE):
        raise Malformed("must not be blank", "body.text")
    return Say(wire.text, wire.intent, _bounded(wire.artifacts, "body.artifacts") if wire.artifacts else ())


def _read_capability(wire: _CapabilityWire, _sender: str) -> Capability:
    """VerificationFailed when the digest is not that of the document (spec section 3)."""
    document = wire.capability
    digest = document.get("digest")
    if not isinstance(digest, str):
        raise Malformed("must be a string", "body.capability.digest")
    try:
        computed = capability_digest(document)
    except (Malformed, VerificationFailed) as error:
        raise type(error)(error.rule, f"body.{error.field}") from None
    if digest != computed:
        raise VerificationFailed("is not the digest of this document", "body.capability.digest")
    return Capability(trim(document["id"]), digest, document)


def _read_receipt(wire: _ReceiptWire, _sender: str) -> Receipt:
    if not is_message_id(wire.for_id):
        raise Malformed("is not an envelope id", "body.for_id")
    if wire.status not in RECEIPT_STATUSES:
        raise Malformed("is none of the six statuses", "body.status")
    if wire.reason_code is None:
        if wire.status in REASON_REQUIRED:
            raise Malformed(f"is required for {wire.status}", "body.reason_code")
    elif wire.status == "accepted":
        raise Malformed("must be absent for accepted", "body.reason_code")
    elif wire.reason_code not in REASON_CODES:
        raise Malformed("is not in the registry", "body.reason_code")
    return Receipt(wire.for_id, wire.status, wire.reason_code, wire.detail)


def _read_trace(wire: _TraceWire, _sender: str) -> Trace:
    """`submitted` is a valid value here; the lifecycle rejects it as an update."""
    if wire.state not in TRACE_STATES:
        raise Malformed("is none of the six states", "body.state")
    result = None if wire.result is None or wire.result == _NULL else wire.result
    refs = _bounded(wire.artifact_refs, "body.artifact_refs") if wire.artifact_refs else ()
    return Trace(wire.state, wire.message, result, refs)


class BodyReader(NamedTuple):
    """How the body of one kind is read: `read(decode(raw), sender)`, which raises Malformed, or VerificationFailed for a digest.

    A body of the type `plain` needs no `decode`. Each of its values is converted: it has no unknown member, and none that is
    kept as JSON. The type is Raw for a kind without such bodies.
    """

    decode: Callable[[Raw], Any]
    plain: type
    read: Callable[[Any, str], Body]


def _reader(wire: type[_T], read: Callable[[_T, str], Body], plain: type = Raw) -> BodyReader:
    return BodyReader(_decoder(wire), plain, read)


BODIES: Final[dict[str, BodyReader]] = {
    "greet": _reader(_GreetWire, _read_greet),
    "whois": _reader(_WhoisWire, _read_whois),
    "say": _reader(_SayWire, _read_say, _PlainSay),
    "capability": _reader(_CapabilityWire, _read_capability),
    "receipt": _reader(_ReceiptWire, _read_receipt, _PlainReceipt),
    "trace": _reader(_TraceWire, _read_trace, _PlainTrace),
}
"""The six kinds."""


def _card(raw: Raw, sender: str) -> PeerCard:
    wire = _decode_card(raw)
    if not is_peer(wire.peer_id):
        raise Malformed("is not a peer id", "body.peer_card.peer_id")
    if wire.peer_id != sender:
        raise Malformed("must equal from", "body.peer_card.peer_id")
    lists = {name: _entries(getattr(wire, name), f"body.peer_card.{name}") for name in CARD_LISTS}
    display_name = trim(wire.display_name) if wire.display_name else None
    if display_name and byte_length(display_name) > MAX_CARD_ENTRY_BYTES:
        raise Malformed(f"is longer than {MAX_CARD_ENTRY_BYTES} bytes", "body.peer_card.display_name")
    return PeerCard(peer_id=wire.peer_id, display_name=display_name or None, ext=wire.ext, **lists)


def _entries(values: Sequence[str], field: str) -> tuple[str, ...]:
    if len(values) > MAX_LIST_ITEMS:
        raise Malformed(f"has more than {MAX_LIST_ITEMS} entries", field)
    entries = tuple(entry for value in values if (entry := trim(value)))
    if any(byte_length(entry) > MAX_CARD_ENTRY_BYTES for entry in entries):
        raise Malformed(f"has an entry longer than {MAX_CARD_ENTRY_BYTES} bytes", field)
    return entries


def _bounded(values: list[Raw], field: str) -> tuple[Raw, ...]:
    if len(values) > MAX_LIST_ITEMS:
        raise Malformed(f"has more than {MAX_LIST_ITEMS} entries", field)
    return tuple(values)


def _malformed(error: msgspec.ValidationError, field: str) -> Malformed:
    """From the decoder's message, which has type and JSON path (`… - at `$.text``), but no value sent by the peer."""
    rule, _, path = str(error).partition(" - at `$")
    return Malformed(rule[0].lower() + rule[1:], field + path.rstrip("`"))
