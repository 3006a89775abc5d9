"""Identifiers that are derived from foreign messages, so that the same message handed over twice is sent once.

Every hash is SHA-256 over UTF-8 parts that are joined with their lengths, cut to 32 hex digits.
"""

import hashlib
from typing import Any, Final

import msgspec

from aghbus.protocol.identifiers import is_message_id

_canonical: Final = msgspec.json.Encoder(order="deterministic").encode


def canonical(value: Any) -> bytes:
    """JSON with sorted keys: the same bytes for the same value."""
    return _canonical(value)


def same_json(left: Any, right: Any) -> bool:
    """The same JSON value: `1`, `1.0` and `true` are three."""
    return canonical(left) == canonical(right)


def digest(*parts: str | bytes | None) -> str:
    """32 hex digits of all `parts`; None differs from the empty text."""
    state = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        state.update(b"-:" if content is None else b"%d:" % len(content))
        state.update(content or b"")
    return state.hexdigest()[:32]


def envelope_id(
    name: str,
    kind: str,
    us: str,
    target: str | None,
    answered: str | None,
    identity: str | bytes,
    key: str | None = None,
) -> str:
    """The id of the envelope that a foreign message becomes (adapters.md, Idempotent).

    `kind` tells the envelopes of one message apart. `identity` is the foreign id, or the canonical content where a format
    has none.
    """
    return "msg_" + digest("envelope", name, kind, us, target, answered, identity, key)


def work_id(opening_id: str) -> str:
    """The work that an envelope with this derived id opens."""
    return "work_" + digest("work", opening_id)


def thread_id(name: str, *parts: str) -> str:
    """The thread of a session, conversation or workflow."""
    return "thread_" + digest("thread", name, *parts)


def legal_id(value: str) -> str:
    """`value` itself where it can be a trace_id or reply_to, else a hash of it; the original stays in `ext`."""
    return value if is_message_id(value) else "sha256_" + digest("id", value)
