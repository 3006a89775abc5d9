"""Grammars of all identifiers, ids that we create, and derived ids (spec sections 1 and 4).

Invalid identifiers are refused, never repaired.
"""

import hashlib
import re
from functools import lru_cache
from typing import Final

from aghbus.protocol.agh.limits import MAX_ID_BYTES, MAX_WORK_ID_BYTES, MAX_WORKSPACE_BYTES, SUBJECT_PREFIX
from aghbus.protocol.base.text import WHITE_SPACE, byte_length, has_control

CHANNEL: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
PEER_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
NICKNAME: Final = re.compile(r"[a-z0-9_-]{1,32}")
HANDLE: Final = re.compile(rf"{NICKNAME.pattern}@[a-f0-9]{{32}}")
KEY_ID: Final = re.compile(r"sha256:[a-f0-9]{64}")
THREAD_ID: Final = re.compile(r"thread_[a-z0-9][a-z0-9_-]{2,95}")
DIRECT_ID: Final = re.compile(r"direct_[a-f0-9]{32}")
EMITTED_WORK_ID: Final = re.compile(r"work_[a-zA-Z0-9_-]{1,64}")
_CACHED: Final = 4_096  # names derived from valid names; most messages are between few peers
_WORKSPACE_FORBIDDEN: Final = re.compile(r"[.*> \x00-\x1f\x7f-\x9f]")
PEER_RULE: Final = (
    "must be a peer id: 1 to 128 of a-z, 0-9, `.`, `_` and `-`, first a letter or digit; or NICKNAME@FINGERPRINT"
)
"""What `is_peer` asks for."""
_PEER: Final = re.compile(rf"{PEER_ID.pattern}|{HANDLE.pattern}")
PLAIN_ID: Final = re.compile(r"[!-~]{1,256}").fullmatch
"""Whether a value is a message id of the usual form, ASCII without spaces; `is_message_id` decides about others."""

PLAIN_WORK_ID: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}").fullmatch
"""As PLAIN_ID, for `is_work_id`."""


def is_message_id(value: str) -> bool:
    """1-256 bytes, no control characters, no white space at either end: id, reply_to, trace_id, causation_id."""
    if PLAIN_ID(value):
        return True
    return (
        0 < byte_length(value) <= MAX_ID_BYTES
        and not has_control(value)
        and value == value.strip(WHITE_SPACE)
        and _is_scalar(value)
    )


def is_work_id(value: str) -> bool:
    """A work id that we accept from peers: 1-128 bytes without `/`, `\\`, control characters or white space at either end."""
    if PLAIN_WORK_ID(value):
        return True
    return is_message_id(value) and "/" not in value and "\\" not in value and byte_length(value) <= MAX_WORK_ID_BYTES


def is_emitted_work_id(value: str) -> bool:
    """A work id that we open works with: `^work_[a-zA-Z0-9_-]{1,64}$`."""
    return EMITTED_WORK_ID.fullmatch(value) is not None


def is_workspace_id(value: str) -> bool:
    """Non-empty, without `.`, space, `*`, `>` and control characters, since it is one token of a subject."""
    return (
        0 < byte_length(value) <= MAX_WORKSPACE_BYTES and not _WORKSPACE_FORBIDDEN.search(value) and _is_scalar(value)
    )


def is_channel(value: str) -> bool:
    """`^[a-z0-9][a-z0-9_-]{0,63}$`."""
    return CHANNEL.fullmatch(value) is not None


def is_peer(value: str) -> bool:
    """A plain peer id or a verified handle."""
    return _PEER.fullmatch(value) is not None


def is_handle(value: str) -> bool:
    """`nickname@fingerprint` of a peer with a key (spec section 8)."""
    return HANDLE.fullmatch(value) is not None


def is_key_id(value: str) -> bool:
    """`sha256:` and the 64 hex digits of SHA-256 of a public key (spec section 8)."""
    return KEY_ID.fullmatch(value) is not None


def is_thread_id(value: str) -> bool:
    """`^thread_[a-z0-9][a-z0-9_-]{2,95}$`."""
    return THREAD_ID.fullmatch(value) is not None


def is_direct_id(value: str) -> bool:
    """`^direct_[a-f0-9]{32}$`."""
    return DIRECT_ID.fullmatch(value) is not None


def _is_scalar(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def uuid7_hex(now_ms: int, entropy: bytes) -> str:
    """UUID version 7 as 32 hex digits: Unix milliseconds, then 10 bytes of `entropy` (RFC 9562 section 5.7).

    The time comes first, so ids sort by creation and an index on them grows at its end.
    """
    if len(entropy) != 10:
        raise ValueError(f"entropy: 10 bytes needed, got {len(entropy)}")
    rest = int.from_bytes(entropy, "big")
    value = (now_ms & (2**48 - 1)) << 80
    value |= 0x7 << 76 | (rest >> 68) << 64 | 0b10 << 62 | rest & (2**62 - 1)
    return f"{value:032x}"


def route_token(peer: str) -> str:
    """The peer's token in subjects: 32 hex digits (spec section 4); a handle's own fingerprint for a verified peer."""
    if HANDLE.fullmatch(peer):
        return peer.rpartition("@")[2]
    return hashlib.sha256(peer.encode()).hexdigest()[:32]


def pair_of(a: str, b: str) -> tuple[str, str]:
    """The two peers of a direct room, in code point order. ValueError when they are the same."""
    if a == b:
        raise ValueError("a direct room needs two different peers")
    return (a, b) if a < b else (b, a)


@lru_cache(_CACHED)
def direct_id(workspace_id: str, channel: str, peer_a: str, peer_b: str) -> str:
    """The id of the room of two peers in a channel (spec section 4). ValueError when the peers are the same."""
    first, second = pair_of(peer_a, peer_b)
    joined = "\0".join(("agh-network/direct-room/v0", workspace_id, channel, first, second))
    return "direct_" + hashlib.sha256(joined.encode()).hexdigest()[:32]


def subject_root(workspace_id: str, channel: str) -> str:
    """The common prefix of all subjects of a channel, without the last dot."""
    return f"{SUBJECT_PREFIX}.{workspace_id}.{channel}"


BROADCAST: Final = ".broadcast"
"""The end of the subject of a broadcast."""


@lru_cache(_CACHED)
def subject_for(workspace_id: str, channel: str, to: str | None) -> str:
    """The subject of an envelope to `to`, or of a broadcast (spec section 4)."""
    root = subject_root(workspace_id, channel)
    return root + BROADCAST if to is None else f"{root}.peer.{route_token(to)}"


@lru_cache(_CACHED)
def channel_of_subject(subject: str) -> tuple[str, str] | None:
    """`(workspace_id, channel)` of a subject; None for a subject that is not of this protocol."""
    parts = subject.split(".")
    if len(parts) < 6 or ".".join(parts[:3]) != SUBJECT_PREFIX:
        return None
    return parts[3], parts[4]
