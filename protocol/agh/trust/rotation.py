"""Key rotation statements: the old key signs that a new key replaces it (docs/trust.md).

A statement has no `protocol` field, so it cannot be mistaken for an envelope. An operator who has pinned the old key checks
it before pinning the new one. Daemons never act on a statement automatically.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aghbus.protocol.agh.trust.canonical_json import Unfaithful, canonical_bytes, read_strict
from aghbus.protocol.agh.trust.keys import (
    PUBLIC_BYTES,
    SIGNATURE_BYTES,
    PublicKey,
    SigningKey,
    decode_base64url,
    encode_base64url,
    key_id,
)

STATEMENT: Final = "aghbus.key-rotation/v1"
_FIELDS: Final = frozenset({"statement", "nickname", "old_pubkey", "new_pubkey", "ts", "sig"})


class Rotation(msgspec.Struct, frozen=True):
    """A valid statement: nickname, both key ids, the new public key, and its time in Unix seconds by the owner's clock."""

    nickname: str
    old_key_id: str
    new_key_id: str
    new_pubkey: str
    ts: int


def rotation_statement(old: SigningKey, new_public: bytes, nickname: str, now: int) -> bytes:
    """The statement as one line of JSON; the old key signs its canonical form without `sig`."""
    document = {
        "statement": STATEMENT,
        "nickname": nickname,
        "old_pubkey": encode_base64url(old.public),
        "new_pubkey": encode_base64url(new_public),
        "ts": now,
    }
    signature = old.sign(canonical_bytes(read_strict(msgspec.json.encode(document))))
    return msgspec.json.encode({**document, "sig": encode_base64url(signature)})


def read_rotation(raw: bytes) -> Rotation | None:
    """The statement in `raw`; None if its fields, an encoding or the signature are invalid."""
    try:
        received = read_strict(raw)
        document = received.value
        if document.keys() != _FIELDS or document["statement"] != STATEMENT:
            return None
        old, new = _bytes(document, "old_pubkey", PUBLIC_BYTES), _bytes(document, "new_pubkey", PUBLIC_BYTES)
        signature = _bytes(document, "sig", SIGNATURE_BYTES)
        nickname, ts, new_text = document["nickname"], document["ts"], document["new_pubkey"]
        del document["sig"]
        signed = canonical_bytes(received)
    except Unfaithful:
        return None
    if old is None or new is None or signature is None or not PublicKey(old).has_signed(signed, signature):
        return None
    if not isinstance(nickname, str) or not isinstance(ts, int):
        return None
    return Rotation(nickname, key_id(old), key_id(new), new_text, ts)


def _bytes(document: Mapping[str, Any], field: str, size: int) -> bytes | None:
    value = document[field]
    return decode_base64url(value, size) if isinstance(value, str) else None
