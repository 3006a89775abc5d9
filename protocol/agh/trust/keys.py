"""Ed25519 keys and the names derived from them: key id, fingerprint, verified handle (spec section 8).

OpenSSL creates keys and signatures. libsodium verifies signatures, in half the time for an envelope of ordinary size. It also
rejects keys of small order, for which one signature is valid for every message, and non-canonical encodings of keys.
Both libraries are loaded when they are first used: OpenSSL with the first private key, which takes six megabytes, libsodium with
the first signature to verify, which takes 0.8.
"""

import binascii
import hashlib
import re
from collections.abc import Callable
from functools import cache
from typing import Final, NoReturn

SEED_BYTES: Final = 32  # RFC 8032 section 5.1.5
PUBLIC_BYTES: Final = 32  # RFC 8032 section 5.1.5
SIGNATURE_BYTES: Final = 64  # RFC 8032 section 5.1.6
FINGERPRINT_DIGITS: Final = 32  # spec section 8: hex digits of SHA-256 that a handle carries
NICKNAME_CHARS: Final = 32  # spec section 8

_NOT_IN_NICKNAME: Final = re.compile(r"[^a-z0-9_-]")
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_", b"+/")


def encode_base64url(raw: bytes) -> str:
    """`raw` in the URL alphabet of RFC 4648 section 5, without padding."""
    return binascii.b2a_base64(raw, newline=False).translate(_TO_URL, b"=").decode("ascii")


def decode_base64url(text: str, size: int) -> bytes | None:
    """The `size` bytes that `text` encodes; None for anything but their canonical encoding.

    Padding, white space, the standard alphabet and stray bits after the last byte are refused: a signature has exactly one
    text form.
    """
    if len(text) != (size * 4 + 2) // 3:
        return None
    try:
        raw = binascii.a2b_base64(text.encode("ascii").translate(_FROM_URL) + b"=" * (-len(text) % 4))
    except (
        ValueError
    ):  # not ASCII, or too few characters of the alphabet; the comparison below finds all other deviations
        return None
    return raw if len(raw) == size and encode_base64url(raw) == text else None


def key_id(public: bytes) -> str:
    """`sha256:` and the 64 hex digits of SHA-256 of the raw public key."""
    return "sha256:" + hashlib.sha256(public).hexdigest()


def fingerprint(public: bytes) -> str:
    """The first 32 hex digits of SHA-256 of the raw public key: the second half of a handle, and its route token."""
    return hashlib.sha256(public).hexdigest()[:FINGERPRINT_DIGITS]


def nickname_of(name: str) -> str:
    """A daemon's nickname: its name in lower case, other characters than `[a-z0-9_-]` as `-`, cut at 32.

    ValueError for an empty name.
    """
    if not name:
        raise ValueError("a nickname needs a name")
    return _NOT_IN_NICKNAME.sub("-", name.lower())[:NICKNAME_CHARS]


def handle_of(name: str, public: bytes) -> str:
    """The verified handle `nickname@fingerprint` of the daemon called `name` with this public key."""
    return f"{nickname_of(name)}@{fingerprint(public)}"


class PublicKey:
    """A public key, and the names derived from it."""

    __slots__ = ("fingerprint", "key_id", "raw")

    def __init__(self, public: bytes) -> None:
        """`public` is the 32 bytes of RFC 8032; they need not be a point of the curve."""
        self.key_id = key_id(public)
        self.fingerprint = fingerprint(public)
        self.raw = public

    def has_signed(self, message: bytes, signature: bytes) -> bool:
        """Whether `signature` is valid for `message` (RFC 8032 section 5.1.7); False for a wrong length.

        Releases the GIL.
        """
        if len(signature) != SIGNATURE_BYTES or len(self.raw) != PUBLIC_BYTES:  # the library checks neither
            return False
        opened, bad_signature = _libsodium()
        try:
            opened(signature + message, self.raw)
        except bad_signature:
            return False
        return True


@cache
def _libsodium() -> tuple[Callable[[bytes, bytes], bytes], type[Exception]]:
    """libsodium's verification, and the error that it raises."""
    from nacl.bindings import crypto_sign_open
    from nacl.exceptions import BadSignatureError

    return crypto_sign_open, BadSignatureError


class PublicKeys:
    """A cache of public keys by their text in proofs; decoding one costs a tenth of a verification.

    It holds at most `most` keys and is cleared when it is full. Thread-safe.
    """

    __slots__ = ("_by_text", "_most")

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._by_text: dict[str, PublicKey] = {}

    def read(self, text: str) -> PublicKey | None:
        """The key that `text` encodes in strict base64url; None for any other text."""
        if (known := self._by_text.get(text)) is not None:
            return known
        public = decode_base64url(text, PUBLIC_BYTES)
        if public is None:
            return None
        if len(self._by_text) >= self._most:
            self._by_text.clear()
        return self._by_text.setdefault(text, PublicKey(public))

    def __len__(self) -> int:
        return len(self._by_text)


class SigningKey:
    """A private key. It has no text form that shows the secret, and cannot be pickled or copied."""

    __slots__ = ("_private", "fingerprint", "key_id", "public")

    def __init__(self, seed: bytes) -> None:
        """`seed` is the 32 bytes of RFC 8032's secret key. ValueError for another length; it does not contain the bytes."""
        if len(seed) != SEED_BYTES:
            raise ValueError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._private.public_key().public_bytes_raw()
        self.key_id = key_id(self.public)
        self.fingerprint = fingerprint(self.public)

    def sign(self, message: bytes) -> bytes:
        """The signature, 64 bytes (RFC 8032 section 5.1.6); deterministic."""
        return self._private.sign(message)

    def agree(self, theirs: PublicKey) -> bytes | None:
        """The X25519 secret of both keys (RFC 7748 section 6.1), 32 bytes; None for a public key of small order, or off the
        main subgroup."""
        from nacl import bindings
        from nacl.exceptions import CryptoError

        secret = bindings.crypto_sign_ed25519_sk_to_curve25519(self.reveal_seed() + self.public)
        try:
            return bindings.crypto_scalarmult(secret, bindings.crypto_sign_ed25519_pk_to_curve25519(theirs.raw))
        except CryptoError:
            return None

    def reveal_seed(self) -> bytes:
        """The 32 secret bytes, to write a key file."""
        return self._private.private_bytes_raw()

    def __repr__(self) -> str:
        return f"SigningKey({self.key_id})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private key is not pickled")
