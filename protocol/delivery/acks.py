"""Commit acknowledgements: an extension on top of NATS request-reply (spec section 7), never part of an envelope.

A daemon answers on the reply subject of a directed publish once it has committed the envelope (docs/adr/0005). A peer with a
key signs its answers and names both peers in them; unsigned answers in its name are ignored. Otherwise any subscriber of a
peer's subject could end a work between two verified peers. Other messages on the subject are ignored.
"""

import re
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from aghbus.protocol.bodies import Receipt
from aghbus.protocol.effects import Effects, Quarantine, StoreEnvelope
from aghbus.protocol.envelope import Envelope, decode_document
from aghbus.protocol.lifecycle import REFUSING_OUTCOMES, Step, WorkView
from aghbus.protocol.trust.proof import verify
from aghbus.protocol.trust.trust import Signer

ANSWER_TO: Final = "Aghbus-Answer-To"
"""Header that repeats the reply subject on a publish to a stream: streams keep headers but not reply subjects."""

MAX_REPLY_CHARS: Final = 256
MAX_ANSWER_BYTES: Final = 4096
"""Our own limit: an answer has a few hundred bytes, and checking the signature of a megabyte can take a second."""

# Answers go only to inboxes for acknowledgements (protocol/nats/names.py): an untrusted peer cannot direct them elsewhere.
_ANSWERED: Final = re.compile(r"_INBOX\.[0-9a-f]{32}\.ack(?:\.[!-)+\-/-=?-~]+)+")


# Reasons of automatic receipts `rejected` (spec section 5); an agent gives others, of which `busy` is the usual one.
_REFUSALS: Final = frozenset(
    {
        "invalid_surface",
        "legacy_field_rejected",
        "malformed",
        "not_found",
        "not_target",
        "unsupported_profile",
        "verification_failed",
        "work_closed",
        "work_container_mismatch",
    }
)
NOT_STORED: Final = _REFUSALS - {"work_closed", "work_container_mismatch"}
"""Reasons for which a receiver refuses an envelope without remembering its id."""


class Ack(msgspec.Struct, frozen=True, tag_field="aghbus", tag="ack"):
    """`id` was committed with effect (also when it had been before), or refused for `reason` (a reason code).

    `digest` is the SHA-256, in hexadecimal, of the envelope that the receiver judged; for a duplicate, of the first copy.
    An answer with another digest than the sender's envelope has says nothing about that envelope.
    """

    id: str
    outcome: Literal["committed", "refused"]
    reason: str | None = None
    digest: str = ""


def ack_of(envelope: Envelope, effects: Effects) -> Ack | None:
    """The answer to an envelope that was decided with these effects; None for a duplicate, of which the store knows more."""
    for effect in effects:
        if type(effect) is StoreEnvelope:
            if effect.verdict is None:
                return Ack(envelope.id, "committed", None, envelope.digest)
            return stored_ack(envelope.id, envelope.digest, effect.verdict)
        if type(effect) is Quarantine:
            return Ack(envelope.id, "refused", effect.reason, envelope.digest)
    return None


def stored_ack(message_id: str, digest: str, verdict: Step | None) -> Ack:
    """The answer to an envelope that is stored with this verdict of the lifecycle."""
    if verdict is not None and verdict.outcome in REFUSING_OUTCOMES:
        return Ack(message_id, "refused", verdict.reason, digest)
    return Ack(message_id, "committed", None, digest)


def refusal_in(receipt: Receipt, work: WorkView | None) -> str | None:
    """The reason for which `receipt` says that the message it answers had no effect; None if it says something else.

    An agent that rejects a work answers the opening, which was taken.
    """
    if receipt.status in ("expired", "unsupported"):
        return receipt.reason_code or receipt.status
    if receipt.status == "rejected" and (receipt.reason_code in _REFUSALS or work is None):
        return receipt.reason_code
    return None


encode_ack: Final[Callable[[Ack], bytes]] = msgspec.json.Encoder().encode
"""The bytes of an answer of a peer without a key."""

_decode: Final = msgspec.json.Decoder(Ack).decode


def encode_signed_ack(ack: Ack, *, sender: str, to: str, signer: Signer) -> bytes:
    """The bytes of an answer from the handle `sender` to the peer `to`, signed by `signer`."""
    return msgspec.json.encode(signer({**msgspec.to_builtins(ack), "from": sender, "to": to}))


def is_answer_of(raw: bytes, *, recipient: str, sender: str) -> bool:
    """Whether `raw`, an answer to a message from `sender` to `recipient`, can come from that recipient.

    A verified handle must have signed it for this sender. A peer without a key cannot prove it: its answers are accepted
    like its messages.
    """
    if "@" not in recipient:
        return True
    if verify(raw).state != "verified":
        return False
    document = decode_document(raw)
    return (document.get("from"), document.get("to")) == (recipient, sender)


def parse_ack(raw: bytes) -> Ack | None:
    """The answer in `raw`; None for any other message on a reply subject."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def may_answer(reply: str) -> bool:
    """Whether an answer may be published to this reply subject."""
    return len(reply) <= MAX_REPLY_CHARS and _ANSWERED.fullmatch(reply) is not None
