"""Authentication tags: a keyed hash of an envelope's bytes in a header, by which a daemon recognizes the messages of a peer before
it verifies their signatures. An extension, never part of an envelope, and no replacement for the signature (docs/adr/0015).
"""

import hashlib
from hmac import compare_digest
from typing import Final

from aghbus.protocol.agh.trust.keys import PublicKey, SigningKey, encode_base64url

TAG: Final = "Aghbus-Tag"
"""Header with the tag of a directed envelope."""

_TAG_BYTES: Final = 16
_KEY_BYTES: Final = 32
_PURPOSE: Final = b"aghbus.tag/v1"  # of the derived key; BLAKE2's parameter for the separation of domains


def pair_key(ours: SigningKey, our_id: str, theirs: PublicKey, their_id: str) -> bytes | None:
    """The key of the tags between two handles, the same on both sides; None for a public key without a safe agreement."""
    shared = ours.agree(theirs)
    if shared is None:
        return None
    ids = "\n".join(sorted((our_id, their_id))).encode()
    return hashlib.blake2b(ids, key=shared, person=_PURPOSE, digest_size=_KEY_BYTES).digest()


def tag_of(key: bytes, raw: bytes) -> str:
    """The tag of the bytes of an envelope: 22 characters of base64url."""
    return encode_base64url(hashlib.blake2b(raw, key=key, digest_size=_TAG_BYTES).digest())


def is_tag_of(tag: str, key: bytes, raw: bytes) -> bool:
    """Whether `tag`, which is any text, is that of `raw`."""
    return tag.isascii() and compare_digest(tag, tag_of(key, raw))
