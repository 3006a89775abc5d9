"""Commit acknowledgements: a convenience on NATS request-reply (spec section 7), never part of an envelope.

A sender may put a reply subject on a directed publish; a daemon of this project that has committed the envelope answers there
with a few bytes. What is not such an answer (a stream's acknowledgement, say) is skipped. docs/adr/0005 says why.
"""

from typing import Final, Literal

import msgspec

ANSWER_TO: Final = "Aghbus-Answer-To"
"""Header that names the reply subject again, on a repeated publish: a stream in between keeps headers, but not replies."""

REPLY_PREFIX: Final = (
    "_INBOX."  # the only subjects that are answered: a stranger's reply subject must not aim anywhere else
)
MAX_REPLY_CHARS: Final = 256  # ours


class Ack(msgspec.Struct, frozen=True, tag_field="aghbus", tag="ack"):
    """`id` was committed (also when it had been before), or refused for `reason` (a reason code)."""

    id: str
    outcome: Literal["committed", "refused"]
    reason: str | None = None


_decode: Final = msgspec.json.Decoder(Ack).decode


def encode_ack(ack: Ack) -> bytes:
    """The bytes of an answer."""
    return msgspec.json.encode(ack)


def parse_ack(raw: bytes) -> Ack | None:
    """The answer in `raw`; None for anything else that came to a reply subject."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def may_answer(reply: str) -> bool:
    """Whether an answer may be published to this reply subject."""
    return (
        reply.startswith(REPLY_PREFIX)
        and len(reply) <= MAX_REPLY_CHARS
        and reply.isascii()
        and not set(reply) & set("*> \t\r\n")
    )
