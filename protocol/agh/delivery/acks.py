"""Commit acknowledgements: an extension on top of NATS request-reply (spec section 7), never part of an envelope.

A daemon answers on the reply subject of a directed publish once it has committed the envelope (docs/adr/0005). A peer with a
key signs its answers and names both peers in them; unsigned answers in its name are ignored. Otherwise any subscriber of a
peer's subject could end a work between two verified peers. Other messages on the subject are ignored.

Answers to several messages of one sender, which were committed together, are sent as one message, if their reply subjects say
that the sender takes lists. It goes to the reply subject of the first of them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final, Literal

import msgspec

from aghbus.protocol.agh.bodies import Receipt
from aghbus.protocol.agh.effects import Effects, Quarantine, StoreEnvelope
from aghbus.protocol.agh.envelope import Envelope, decode_document
from aghbus.protocol.agh.lifecycle import REFUSING_OUTCOMES, TERMINAL_STATES, Transition, WorkView
from aghbus.protocol.agh.trust.proof import verify
from aghbus.protocol.agh.trust.trust import Signer

ANSWER_TO: Final = "Aghbus-Answer-To"
"""Header that repeats the reply subject on a publish to a stream: streams keep headers but not reply subjects."""

MAX_REPLY_CHARS: Final = 256
MAX_ANSWER_BYTES: Final = 4096
"""Our own limit: an answer has a few hundred bytes, and checking the signature of a megabyte can take a second."""

LIST: Final = "list"
"""Token after `ack` in the reply subjects of a daemon that takes lists of answers."""

_LIST_MARK: Final = f".ack.{LIST}."
_LIST_MARK_AT: Final = len("_INBOX.") + 32
_MAX_LISTED: Final = 16  # answers of a list: with ids of the usual length they fit into MAX_ANSWER_BYTES

# Answers go only to inboxes for acknowledgements (protocol/agh/nats/names.py): an untrusted peer cannot direct them elsewhere.
_ANSWERED: Final = re.compile(r"_INBOX\.[0-9a-f]{32}\.ack\.[!-)+-=?-~]+").fullmatch  # tokens may be empty


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


class Ack(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="aghbus", tag="ack"):
    """`id` was committed with effect (also when it had been before), or refused for `reason` (a reason code).

    `digest` is the SHA-256, in hexadecimal, of the envelope that the receiver judged; for a duplicate, of the first copy.
    An answer with another digest than the sender's envelope has says nothing about that envelope. `state` is how the work had
    ended, if the reason is `work_closed`.
    """

    id: str
    outcome: Literal["committed", "refused"]
    reason: str | None = None
    digest: str = ""
    state: str | None = None


class Acks(msgspec.Struct, frozen=True, tag_field="aghbus", tag="acks"):
    """Several answers, each with the last token of its reply subject; the tokens before it are those of this message's subject."""

    acks: list[tuple[str, Ack]]


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


def stored_ack(message_id: str, digest: str, verdict: Transition | None) -> Ack:
    """The answer to an envelope that is stored with this verdict of the lifecycle."""
    if verdict is not None and verdict.outcome in REFUSING_OUTCOMES:
        return Ack(
            message_id, "refused", verdict.reason, digest, verdict.state if verdict.reason == "work_closed" else None
        )
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


def why_refused(reason: str | None, state: str | None) -> str:
    """The delivery detail of a message that its receiver refused. `state` is how its work has ended there."""
    ended = f", the work is {state} there" if state in TERMINAL_STATES else ""
    return f"by the receiver: {reason or 'no reason given'}{ended}"


encode_ack: Final[Callable[[Ack | Acks], bytes]] = msgspec.json.Encoder().encode
"""The bytes of an answer of a peer without a key."""

_decode: Final[Callable[[bytes], Ack | Acks]] = msgspec.json.Decoder(Ack | Acks).decode


def encode_signed_ack(ack: Ack | Acks, *, sender: str, to: str, signer: Signer) -> bytes:
    """The bytes of an answer from the handle `sender` to the peer `to`, signed by `signer`."""
    return msgspec.json.encode(signer({**msgspec.to_builtins(ack), "from": sender, "to": to}))


def answer_messages(
    inbox: str, acks: Sequence[tuple[str, Ack]], encode: Callable[[Ack | Acks], bytes]
) -> Iterator[tuple[str, bytes]]:
    """Subjects and bytes of the messages with these answers, each of which has the last token of its reply subject below `inbox`.

    Answers are listed only if `inbox` takes lists, and if the list has no more than MAX_ANSWER_BYTES.
    """
    step = _MAX_LISTED if inbox.startswith(_LIST_MARK, _LIST_MARK_AT) else 1
    for at in range(0, len(acks), step):
        part = acks[at : at + step]
        if len(part) > 1 and len(raw := encode(Acks(list(part)))) <= MAX_ANSWER_BYTES:
            yield f"{inbox}.{part[0][0]}", raw
            continue
        for token, ack in part:
            yield f"{inbox}.{token}", encode(ack)


def is_answer_of(raw: bytes, *, recipient: str, sender: str) -> bool:
    """Whether `raw`, which answers a message from `sender` to `recipient`, can come from that recipient.

    A verified handle must have signed it for this sender. A peer without a key cannot prove it: its answers are accepted
    like its messages.
    """
    return "@" not in recipient or _signed_names(raw) == (recipient, sender)


@lru_cache(maxsize=4)  # a list is asked about once for each of its answers
def _signed_names(raw: bytes) -> tuple[object, object] | None:
    """`from` and `to` of a verified answer."""
    if verify(raw).state != "verified":
        return None
    document = decode_document(raw)
    return document.get("from"), document.get("to")


def parse_ack(raw: bytes) -> Ack | Acks | None:
    """The answer or the answers in `raw`; None for any other message on a reply subject."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def may_answer(reply: str) -> bool:
    """Whether an answer may be published to this reply subject."""
    if len(reply) > MAX_REPLY_CHARS or _ANSWERED(reply) is None:
        return False
    return ".." not in reply and reply[-1] != "."
