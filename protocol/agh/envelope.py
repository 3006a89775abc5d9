"""The envelope and its parser (spec section 1). An envelope is parsed once; its raw bytes are kept.

`parse` runs steps 1 to 5 of spec section 5 in order. A failure is a ProtocolError with its reason code and the field at
fault.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final, Literal, Union

import msgspec
from msgspec import Raw

from aghbus.protocol.agh.bodies import BODIES, Body, BodyWire
from aghbus.protocol.agh.decoding import check_structure, decode_json, decoder
from aghbus.protocol.agh.errors import (
    Expired,
    InvalidSurface,
    LegacyFieldRejected,
    Malformed,
    ProtocolError,
    Undecodable,
    UnsupportedKind,
)
from aghbus.protocol.agh.identifiers import (
    DIRECT_ID,
    PLAIN_ID,
    PLAIN_WORK_ID,
    THREAD_ID,
    is_channel,
    is_message_id,
    is_peer,
    is_work_id,
    is_workspace_id,
)
from aghbus.protocol.agh.latest_bodies import KnownBody, LatestBodies
from aghbus.protocol.agh.limits import MAX_ENVELOPE_BYTES, MAX_LIFETIME, MAX_SECONDS, PROTOCOL, REPLAY_AGE

StoredKind = Literal["say", "capability", "receipt", "trace"]
"""The kinds that the log has; greet and whois are not stored."""
Kind = StoredKind | Literal["greet", "whois"]
KINDS: Final = frozenset(BODIES)
DISCOVERY_KINDS: Final = frozenset({"greet", "whois"})
WORK_KINDS: Final = frozenset({"receipt", "trace"})  # work_id required
OPENING_KINDS: Final[frozenset[StoredKind]] = frozenset({"say", "capability"})  # may open a work
CONVERSATION_KINDS: Final[frozenset[StoredKind]] = frozenset({"say", "capability", "receipt", "trace"})


class Envelope(msgspec.Struct, frozen=True, dict=True):
    """One valid envelope. `sender` and `to` are the wire's `from` and `to`; `container` is thread_id or direct_id.

    `raw` is the message exactly as received, or as it will be published; it keeps unknown fields. `fresh_until` is the Unix
    second from which on it is expired (spec section 5 step 3).
    """

    raw: bytes
    id: str
    workspace_id: str
    kind: str
    channel: str
    sender: str
    to: str | None
    surface: str | None
    container: str | None
    work_id: str | None
    reply_to: str | None
    trace_id: str | None
    causation_id: str | None
    ts: int
    expires_at: int | None
    fresh_until: int
    body: Body
    ext: Raw | None
    proof: Raw | None

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes, in hexadecimal. It is computed once, without the lock of cached_property in Python 3.11."""
        kept: dict[str, str] = self.__dict__
        digest = kept.get("digest")
        if digest is None:
            digest = kept["digest"] = sha256(self.raw).hexdigest()
        return digest

    def document(self) -> dict[str, Any]:
        """The whole envelope as received, unknown fields and `ext` included."""
        decoded: dict[str, Any] = decode_json(self.raw)
        return decoded

    def extensions(self) -> dict[str, Any]:
        """`ext` as a value, not to be changed; empty when absent. Greet and whois have it decoded already."""
        if self.ext is None:
            return {}
        known: dict[str, Any] | None = self.__dict__.get("ext")
        return decode_json(self.ext) if known is None else known


NULL: Final = Raw(b"null")


class Wire(msgspec.Struct, kw_only=True):
    """The members of an envelope in the order of spec section 1, with their types checked, but not their values."""

    protocol: str
    id: str
    workspace_id: str
    kind: Any
    channel: str
    sender: str = msgspec.field(name="from")
    to: str | None = None
    ts: int
    surface: Any = None
    thread_id: str | None = None
    direct_id: str | None = None
    work_id: str | None = None
    reply_to: str | None = None
    trace_id: str | None = None
    causation_id: str | None = None
    expires_at: int | None = None
    body: Raw
    proof: Raw = NULL
    ext: Raw = NULL


def _plain_wire(kind: str, body: type) -> type[Wire]:
    """The members of `Wire` in an envelope of this kind, without unknown members. If the kind has plain bodies, all values but
    `ext` are converted, also the first ones of repeated members.
    """
    types: dict[str, Any] = {"surface": str | None, "body": body}
    if body is not Raw:
        types["proof"] = None
    members = [
        (field.name, types.get(field.name, field.type), msgspec.field(default=field.default, name=field.encode_name))
        for field in msgspec.structs.fields(Wire)
        if field.name != "kind"
    ]
    return msgspec.defstruct(  # type: ignore[return-value]  # has the same attributes
        f"{kind}_wire",
        members,
        kw_only=True,
        forbid_unknown_fields=True,
        tag_field="kind",
        tag=kind,
        namespace={"kind": kind},
    )


_Route = tuple[str, str, str, str | None]
"""Workspace, channel, sender, receiver."""
_valid_routes: dict[_Route, _Route] = {}
_valid_threads: dict[str | None, str] = {}
_MAX_CACHED: Final = 4_096  # only valid routes and thread ids are cached, and they are short
_CORRELATION: Final = ("reply_to", "trace_id", "causation_id")
_KINDS: Final = {kind: kind for kind in KINDS}
_decode_wire: Final = decoder(Wire)
_PlainWire: Any = Union[tuple(_plain_wire(kind, reader.plain) for kind, reader in BODIES.items())]  # noqa: UP007
_decode_plain: Final[Callable[[bytes], Wire]] = decoder(_PlainWire)
_latest: Final = LatestBodies[Body]()
_BACKSLASH: Final = ord(
    "\\"
)  # `in` with an integer is far quicker than a search, a count, or `in` with bytes of length one


def fresh_until(ts: int, expires_at: int | None) -> int:
    """Unix seconds from which on an envelope with these times is expired."""
    if expires_at is None:
        return ts + REPLAY_AGE + 1  # `older than the replay age`: exactly that old is still fresh
    latest = ts + MAX_LIFETIME + 1
    return expires_at if expires_at < latest else latest  # every message passes here: a call of `min` costs more


def parse(raw: bytes, now: int) -> Envelope:
    """The envelope in `raw`, at Unix second `now` (spec section 5 steps 1-5).

    Raises the ProtocolError of the first rule that fails, and nothing else whatever the bytes; with the document, if that was
    decoded.
    """
    wire, body_wire, kept, document = _decode(raw)
    try:
        envelope = _checked(raw, wire, body_wire, kept, now)
    except ProtocolError as error:
        error.document = document
        raise
    if envelope.kind in DISCOVERY_KINDS:
        ext = envelope.__dict__["ext"] = kept.get("ext")
        if document is not None:
            _latest.put(_key(wire), KnownBody(wire.body.copy(), wire.ext.copy(), envelope.body, ext))
    return envelope


def checked(raw: bytes, wire: Wire, now: int) -> Envelope:
    """As `parse`, for an unsigned envelope of our own encoder: its members are `wire`, and `body` and `ext` are objects."""
    check_structure(raw)
    return _checked(raw, wire, None, {"body": {}, "ext": {}} if wire.ext is not NULL else {}, now)


def _checked(raw: bytes, wire: Wire, body_wire: BodyWire | None, kept: dict[str, Any], now: int) -> Envelope:
    """The values of the members. `kept` has those whose JSON type is still to be checked."""
    kind, (workspace_id, channel, sender, to) = _check_header(wire)
    fresh_until = _check_fresh(wire, now)
    surface, container = _check_no_surface(wire, kind) if kind in DISCOVERY_KINDS else _check_surface(wire, kind)
    if body_wire is None and kept and type(kept["body"]) is not dict:
        raise Malformed("must be an object", "body")
    reader = BODIES[kind]
    body = reader.read(reader.decode(wire.body) if body_wire is None else body_wire, sender)
    if kind == "whois" and wire.reply_to is None and getattr(body, "type", "") == "response":
        raise Malformed("is required on a whois response", "reply_to")
    return Envelope(  # positional: CPython passes more than fifteen keywords in a dict, which is far slower
        raw,
        wire.id,
        workspace_id,
        kind,
        channel,
        sender,
        to,
        surface,
        container,
        wire.work_id,
        wire.reply_to,
        wire.trace_id,
        wire.causation_id,
        wire.ts,
        wire.expires_at,
        fresh_until,
        body,
        _object(wire.ext, kept, "ext") if "ext" in kept else None,
        _object(wire.proof, kept, "proof") if "proof" in kept else None,
    )


def decode_document(raw: bytes) -> dict[str, Any]:
    """Any JSON object within the bounds of size and structure, last duplicate key winning. Raises Undecodable."""
    _check_text(raw)
    check_structure(raw)
    try:
        value = decode_json(raw)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Undecodable(f"not JSON: {_decoder_words(error)}") from None
    if not isinstance(value, dict):
        raise Undecodable("must be a JSON object")
    return value


_Decoded = tuple[Wire, BodyWire | None, dict[str, Any], dict[str, Any] | None]
"""The typed members; the typed body, or None if its type has to be checked; values of members that are kept as JSON; the whole
document, if it was decoded."""


def _decode(raw: bytes) -> _Decoded:
    """A number out of range, deep nesting or too much structure must fail here, wherever it is, also in the first value of a
    repeated member. The typed decoder finds them only in values that it converts.
    """
    if not raw.isascii() or len(raw) > MAX_ENVELOPE_BYTES:
        _check_text(raw)
    try:
        wire = _decode_plain(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return _decode_fully(raw)
    if wire.kind in DISCOVERY_KINDS:
        return _decode_discovery(raw, wire)
    body: BodyWire = wire.body
    if type(body) is Raw:
        body = None
    elif wire.ext is NULL:  # absent; before a null there may be another value
        return wire, body, {}, None
    elif raw.count(b'"ext"') == 1 and _BACKSLASH not in raw:  # it has no other value
        check_structure(raw)
        try:
            return wire, body, {"ext": decode_json(wire.ext)}, None
        except (msgspec.DecodeError, RecursionError, ValueError):
            pass  # refused below, with the position in the whole document
    document = decode_document(raw)
    return wire, body, document, document


def _decode_discovery(raw: bytes, wire: Wire) -> _Decoded:
    """What the sender has sent last, and sends again, is not decoded again."""
    known = _latest.get(_key(wire))
    if (
        known is not None
        and known.raw_body == wire.body
        and known.raw_ext == wire.ext
        and raw.count(b'"body"') == 1  # of a repeated member the first value was not compared
        and (wire.ext is NULL or raw.count(b'"ext"') == 1)
        and raw.count(b'"proof"') <= 1
        and _BACKSLASH not in raw
    ):
        if wire.proof == NULL:
            return wire, known.body, {"ext": known.ext}, None
        check_structure(raw)
        try:
            return wire, known.body, {"ext": known.ext, "proof": decode_json(wire.proof)}, None
        except (msgspec.DecodeError, RecursionError, ValueError):
            pass  # refused below, with the position in the whole document
    document = decode_document(raw)
    return wire, None, document, document


def _key(wire: Wire) -> tuple[str, str, bool]:
    return wire.sender, wire.kind, wire.reply_to is not None


def _decode_fully(raw: bytes) -> _Decoded:
    """Of duplicate keys the last wins, also after one of a wrong type, which the typed decoder refuses."""
    document = decode_document(raw)
    try:
        return _typed(raw, document), None, document, document
    except ProtocolError as error:
        error.document = document
        raise


def _typed(raw: bytes, document: dict[str, Any]) -> Wire:
    if "interaction_id" in document:
        raise LegacyFieldRejected("is no longer part of the protocol", "interaction_id")
    try:
        try:
            return _decode_wire(raw)
        except msgspec.ValidationError:
            return _decode_wire(msgspec.json.encode(document))
    except (msgspec.ValidationError, msgspec.EncodeError, ValueError) as error:
        rule, _, path = str(error).partition(" - at `$")
        missing = "missing required field `"
        if missing in rule:
            raise Malformed("is required", rule.partition(missing)[2].rstrip("`")) from None
        raise Malformed(rule[0].lower() + rule[1:], path.strip(".`")) from None


def _check_text(raw: bytes) -> None:
    if len(raw) > MAX_ENVELOPE_BYTES:
        raise Undecodable(f"is larger than {MAX_ENVELOPE_BYTES} bytes")
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise Undecodable(f"is not UTF-8 at byte {error.start}") from None


def _check_header(wire: Wire) -> tuple[str, _Route]:
    """Spec section 5 step 2: required fields and grammars, protocol, kind. Returns the kind, and the route."""
    if wire.protocol != PROTOCOL:
        raise Malformed(f"must be {PROTOCOL}", "protocol")
    if not (PLAIN_ID(wire.id) or is_message_id(wire.id)):
        raise Malformed("must be 1-256 bytes without control characters or outer white space", "id")
    route = (wire.workspace_id, wire.channel, wire.sender, wire.to)
    route = _valid_routes.get(route) or _check_route(route)
    if wire.reply_to is not None or wire.trace_id is not None or wire.causation_id is not None:
        _check_correlation(wire)
    if wire.ts <= 0:
        raise Malformed("must be a positive number of Unix seconds", "ts")
    if wire.expires_at is not None and wire.expires_at > MAX_SECONDS:
        raise Malformed("does not fit 64 bits", "expires_at")
    if not isinstance(wire.kind, str):
        raise Malformed("must be a string", "kind")
    kind = _KINDS.get(wire.kind)
    if kind is None:
        raise UnsupportedKind("is none of greet, whois, say, capability, receipt, trace", "kind")
    if kind == "greet" and wire.to is not None:
        raise Malformed("must be null on a greet", "to")
    return kind, route


def _check_route(route: _Route) -> _Route:
    """Validates workspace, channel, sender and receiver. Valid routes are cached, most messages share few of them: their
    envelopes share the strings, too, which are then compared by identity, and hashed once."""
    workspace_id, channel, sender, to = route
    if not is_workspace_id(workspace_id):
        raise Malformed("must be non-empty without `.`, `*`, `>`, space or control characters", "workspace_id")
    if not is_channel(channel):
        raise Malformed("does not match ^[a-z0-9][a-z0-9_-]{0,63}$", "channel")
    if not is_peer(sender):
        raise Malformed("is not a peer id", "from")
    if to is not None and not is_peer(to):
        raise Malformed("is not a peer id", "to")
    if len(_valid_routes) >= _MAX_CACHED:
        _valid_routes.clear()
    _valid_routes[route] = route
    return route


def _check_correlation(wire: Wire) -> None:
    for field in _CORRELATION:
        value = getattr(wire, field)
        if value is not None and not (PLAIN_ID(value) or is_message_id(value)):
            raise Malformed("must be 1-256 bytes without control characters or outer white space", field)


def _check_fresh(wire: Wire, now: int) -> int:
    """Spec section 5 step 3. Returns the end of freshness."""
    ts, expires_at = wire.ts, wire.expires_at
    if ts > now + REPLAY_AGE:
        raise Expired(f"is more than {REPLAY_AGE} s in the future", "ts")
    if expires_at is not None and expires_at <= now:
        raise Expired("has passed", "expires_at")
    end = fresh_until(ts, expires_at)
    if now >= end:
        age = REPLAY_AGE if expires_at is None else MAX_LIFETIME
        raise Expired(f"is more than {age} s ago", "ts")
    return end


def _check_no_surface(wire: Wire, kind: str) -> tuple[None, None]:
    """Spec section 5 step 4 for discovery: no container."""
    if wire.surface is not None or wire.thread_id is not None or wire.direct_id is not None:
        raise InvalidSurface(f"must be absent on a {kind}", "surface")
    if wire.work_id is not None:
        raise Malformed(f"must be absent on a {kind}", "work_id")
    return None, None


def _check_surface(wire: Wire, kind: str) -> tuple[str, str]:
    """Spec section 5 step 4 for conversation: surface, container, and work_id by kind. Returns surface and container."""
    if wire.surface == "thread":
        known = _valid_threads.get(wire.thread_id) if wire.direct_id is None else None
        surface, container = "thread", known or _check_thread(wire.thread_id, wire.direct_id)
    elif wire.surface == "direct":
        surface, container = "direct", _check_direct(wire.thread_id, wire.direct_id)
    else:
        raise InvalidSurface("must be thread or direct", "surface")
    if wire.work_id is None:
        if kind in WORK_KINDS:
            raise Malformed(f"is required on a {kind}", "work_id")
    elif not (PLAIN_WORK_ID(wire.work_id) or is_work_id(wire.work_id)):
        raise Malformed("must be 1-128 bytes without `/`, `\\`, control characters or outer white space", "work_id")
    return surface, container


def _check_thread(thread_id: str | None, direct_id: str | None) -> str:
    """Returns the thread id, as `_check_route` does the names."""
    if direct_id is not None:
        raise InvalidSurface("must be absent on surface thread", "direct_id")
    if thread_id is None or not THREAD_ID.fullmatch(thread_id):
        raise InvalidSurface("must match ^thread_[a-z0-9][a-z0-9_-]{2,95}$", "thread_id")
    if len(_valid_threads) >= _MAX_CACHED:
        _valid_threads.clear()
    _valid_threads[thread_id] = thread_id
    return thread_id


def _check_direct(thread_id: str | None, direct_id: str | None) -> str:
    if thread_id is not None:
        raise InvalidSurface("must be absent on surface direct", "thread_id")
    if direct_id is None or not DIRECT_ID.fullmatch(direct_id):
        raise InvalidSurface("must match ^direct_[a-f0-9]{32}$", "direct_id")
    return direct_id


def _object(raw: Raw, kept: dict[str, Any], field: str) -> Raw | None:
    value = kept[field]
    if value is not None and type(value) is not dict:
        raise Malformed("must be an object", field)
    return None if value is None else raw


def _decoder_words(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
