"""Order of a flow: the predecessor that an envelope names, and when its receiver may take it (docs/adr/0009).

A flow is what one peer id sends to one recipient in one container. An envelope that is sent while an earlier one of its
flow is unanswered names that one in `ext`, under the signature:

    "aghbus.after": {"id": "msg_…", "expires_at": 1776366200}

Its receiver does not take it before the predecessor. `expires_at` is the Unix second from which on no envelope of the
flow before this one is fresh. A predecessor that ended otherwise is settled by a header of the publish (`AFTER_SETTLED`).
Other implementations ignore both.
"""

import json
from collections.abc import Callable
from typing import Final

import msgspec

from aghbus.protocol.agh.envelope import Envelope, decode_document
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.identifiers import is_message_id
from aghbus.protocol.agh.limits import MAX_SECONDS
from aghbus.protocol.agh.trust.proof import verify
from aghbus.protocol.agh.trust.trust import Signer

AFTER: Final = "aghbus.after"
"""The key in `ext`."""
AFTER_SETTLED: Final = "Aghbus-After-Settled"
"""The header by which the sender says that the predecessor is settled: nothing before this envelope is outstanding."""

_MAX_HEADER_CHARS: Final = 4096  # two peer ids, two message ids and a proof fit
_KEY: Final = AFTER.encode()


class Predecessor(msgspec.Struct, frozen=True):
    """The envelope before another one in its flow, by its id: the value of AFTER in `ext`.

    `expires_at` is the Unix second from which on neither it nor any earlier one can be accepted.
    """

    id: str
    expires_at: int


class _Extensions(msgspec.Struct):
    after: Predecessor = msgspec.field(name=AFTER)


class _Settled(msgspec.Struct, frozen=True, tag_field="aghbus", tag="settled"):
    id: str
    after: str


class _Extended(msgspec.Struct):
    ext: _Extensions


_decode: Final = msgspec.json.Decoder(_Extensions).decode
_decode_extended: Final = msgspec.json.Decoder(_Extended).decode
_decode_settled: Final = msgspec.json.Decoder(_Settled).decode


def predecessor_of(envelope: Envelope) -> Predecessor | None:
    """The predecessor that the envelope names; None without one, or for a value outside the grammar."""
    return None if envelope.ext is None else _named_in(bytes(envelope.ext), _decode)


def predecessor_in(raw: bytes) -> Predecessor | None:
    """As `predecessor_of`, from the bytes of an envelope."""
    return _named_in(raw, _decode_envelope)


def _decode_envelope(raw: bytes) -> _Extensions:
    return _decode_extended(raw).ext


def _named_in(raw: bytes, decode: Callable[[bytes], _Extensions]) -> Predecessor | None:
    if _KEY not in raw:
        return None
    try:
        after = decode(raw).after
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    return after if is_message_id(after.id) and 0 < after.expires_at <= MAX_SECONDS else None


def settled_header(envelope_id: str, after_id: str, *, sender: str, to: str, signer: Signer | None) -> str:
    """The header value which says that envelope `envelope_id` may be taken without `after_id`; signed by a sender with a key."""
    document = msgspec.to_builtins(_Settled(envelope_id, after_id))
    return json.dumps(document if signer is None else signer({**document, "from": sender, "to": to}))


def may_take(after: Predecessor, envelope: Envelope, *, processed: bool, now: int, settled: str) -> bool:
    """Whether `envelope`, which names `after`, may be taken at Unix second `now`.

    `processed`: the receiver has committed the predecessor. `settled` is the header of that name, empty without one. A
    predecessor that has expired by our clock is not waited for: we would refuse it.
    """
    return processed or now >= after.expires_at or (settled != "" and _settles(settled, after, envelope))


def _settles(value: str, after: Predecessor, envelope: Envelope) -> bool:
    if len(value) > _MAX_HEADER_CHARS:
        return False
    try:
        raw = value.encode()
        if _decode_settled(raw) != _Settled(envelope.id, after.id):
            return False
        document = decode_document(raw)
    except (msgspec.DecodeError, ProtocolError, RecursionError, ValueError):
        return False
    if "@" not in envelope.sender:
        return True
    return (document.get("from"), document.get("to")) == (envelope.sender, envelope.to) and verify(
        raw
    ).state == "verified"
