"""Identifiers derived from foreign messages, so that submitting a message twice sends it once.

Every hash is SHA-256 over length-prefixed UTF-8 parts, truncated to 32 hex digits.
"""

import hashlib
from typing import Any, Final

import msgspec

from aghbus.protocol.agh.identifiers import is_message_id

_canonical: Final = msgspec.json.Encoder(order="deterministic").encode


def canonical(value: Any) -> bytes:
    """JSON with sorted keys: equal values have equal bytes."""
    return _canonical(value)


def same_json(left: Any, right: Any) -> bool:
    """Whether both are the same JSON value; `1`, `1.0` and `true` differ."""
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
    """The id of an envelope made from a foreign message (adapters.md, Idempotent).

    `kind` distinguishes several envelopes of one message. `identity` is the foreign id, or the canonical content in formats
    without ids.
    """
    return "msg_" + digest("envelope", name, kind, us, target, answered, identity, key)


def work_id(opening_id: str) -> str:
    """The id of the work opened by an envelope with this derived id."""
    return "work_" + digest("work", opening_id)


def thread_id(name: str, *parts: str) -> str:
    """The thread id of a session, conversation or workflow."""
    return "thread_" + digest("thread", name, *parts)


def legal_id(value: str) -> str:
    """`value` if it is valid as trace_id or reply_to, else a hash of it; `ext` keeps the original."""
    return value if is_message_id(value) else "sha256_" + digest("id", value)
