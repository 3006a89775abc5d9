"""Commit acknowledgements: a convenience on NATS request-reply (spec section 7), never part of an envelope.

A sender may put a reply subject on a directed publish; a daemon of this project that has committed the envelope answers there
with a few bytes. What is not such an answer (a stream's acknowledgement, say) is skipped. docs/adr/0005 says why.

A peer with a key signs its answers as it signs envelopes, names both ends in them, and is believed only so: otherwise whoever
follows a peer's subject could end a work between two verified peers. Without `protocol` an answer is never taken for an envelope.
"""

import re
from typing import Final, Literal

import msgspec

from aghbus.protocol.envelope import decode_document
from aghbus.protocol.trust.proof import verify
from aghbus.protocol.trust.trust import Signer

ANSWER_TO: Final = "Aghbus-Answer-To"
"""Header that names the reply subject again, on a repeated publish: a stream in between keeps headers, but not replies."""

MAX_REPLY_CHARS: Final = 256  # ours
MAX_ANSWER_BYTES: Final = 4096
"""Ours: an answer has a few hundred bytes. To check the signature of a megabyte can take a second."""

# The inboxes for it (nats_names.py) are the only subjects that are answered: a stranger's reply subject must not aim elsewhere.
_ANSWERED: Final = re.compile(r"_INBOX\.[0-9a-f]{32}\.ack(?:\.[!-)+\-/-=?-~]+)+")


class Ack(msgspec.Struct, frozen=True, tag_field="aghbus", tag="ack"):
    """`id` was committed (also when it had been before), or refused for `reason` (a reason code)."""

    id: str
    outcome: Literal["committed", "refused"]
    reason: str | None = None


_decode: Final = msgspec.json.Decoder(Ack).decode


def encode_ack(ack: Ack) -> bytes:
    """The bytes of an answer of a peer without a key."""
    return msgspec.json.encode(ack)


def encode_signed_ack(ack: Ack, *, sender: str, to: str, signer: Signer) -> bytes:
    """The bytes of an answer of the handle `sender`, whose signer this is, to the peer `to`."""
    return msgspec.json.encode(signer({**msgspec.to_builtins(ack), "from": sender, "to": to}))


def is_answer_of(raw: bytes, *, recipient: str, sender: str) -> bool:
    """Whether `raw`, an answer to what `sender` has sent to `recipient`, may come from that recipient.

    A handle must have signed it, for this sender. A peer without a key cannot show it: its answers are taken as its messages are.
    """
    if "@" not in recipient:
        return True
    if verify(raw).state != "verified":
        return False
    document = decode_document(raw)
    return (document.get("from"), document.get("to")) == (recipient, sender)


def parse_ack(raw: bytes) -> Ack | None:
    """The answer in `raw`; None for anything else that came to a reply subject."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def may_answer(reply: str) -> bool:
    """Whether an answer may be published to this reply subject."""
    return len(reply) <= MAX_REPLY_CHARS and _ANSWERED.fullmatch(reply) is not None
