"""Private keys on disk: PEM (PKCS #8, RFC 5958), mode 0600, encrypted when there is a passphrase.

Nothing here prints, logs or repeats what a file holds; errors name the file, the cause and what to do. OpenSSL's library
is loaded with the first key file.
"""

import os
import secrets
import stat
from pathlib import Path
from typing import ClassVar, Final

from aghbus.host.files import sync_folder
from aghbus.protocol.agh.trust.keys import SEED_BYTES, SigningKey
from aghbus.protocol.base.errors import AghbusError

KEY_FILE: Final = "identity.pem"  # in the instance's state folder
MAX_KEY_BYTES: Final = 65_536  # an encrypted Ed25519 key has some 300
MAX_PASSPHRASE_BYTES: Final = 1_023  # what OpenSSL takes

_GENERATE: Final = "`aghctl key generate` makes one"


class KeyFileError(AghbusError):
    """The key file at `path` cannot be used. `cause` says why, `hint` what to do about it."""

    what: ClassVar[str] = "key file"
    absent_hint: ClassVar[str] = _GENERATE

    def __init__(self, path: Path, cause: str, hint: str) -> None:
        super().__init__(f"{self.what} {path}: {cause}")
        self.path = path
        self.cause = cause
        self.hint = hint


class PassphraseFileError(KeyFileError):
    """The same of the file that holds a key's passphrase."""

    what = "passphrase file"
    absent_hint = "write the passphrase into a file of mode 0600, and name that"


def generate_key() -> SigningKey:
    """A new key from the system's randomness."""
    return SigningKey(secrets.token_bytes(SEED_BYTES))


def write_key(path: Path, key: SigningKey, passphrase: bytes | None = None) -> None:
    """Write `key` to a new file of mode 0600, and have it on disk before returning. Raises KeyFileError; never
    overwrites."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        KeySerializationEncryption,
        NoEncryption,
        PrivateFormat,
    )

    protection: KeySerializationEncryption = NoEncryption()
    if passphrase is not None:
        protection = BestAvailableEncryption(passphrase)
    private = Ed25519PrivateKey.from_private_bytes(key.reveal_seed())
    write_private(path, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection))


def write_private(path: Path, content: bytes) -> None:
    """Write a new file of mode 0600, durably; an unfinished one is taken away again. Raises KeyFileError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise KeyFileError(path, "it exists already", "move it away first, or name another file") from None
    except OSError as error:
        raise KeyFileError(path, os.strerror(error.errno or 0), "name a folder that you can write") from None
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        sync_folder(path.parent)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise KeyFileError(path, os.strerror(error.errno or 0), "free some space") from None


def read_key(path: Path, passphrase: bytes | None = None, *, guarded: bool = False) -> SigningKey:
    """The key in `path`. Raises KeyFileError for a file that others may read, and for anything but an Ed25519 key.

    `guarded`: the folder keeps others out and the mode of the file says nothing, as with systemd's credentials.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    pem = _read(path, KeyFileError, guarded=guarded)
    try:
        private = load_pem_private_key(pem, passphrase)
    except TypeError:  # the library's word for "a passphrase is missing" and for "there is nothing to decrypt"
        if passphrase is None:
            hint = "name the file that holds its passphrase: trust.passphrase_file, or --passphrase-file"
            raise KeyFileError(path, "it is encrypted", hint) from None
        private = load_pem_private_key(pem, None)
    except (ValueError, UnsupportedAlgorithm):
        if passphrase is not None and b"ENCRYPTED" in pem:  # in the first line of PKCS #8, in a header of older forms
            hint = "see trust.passphrase_file, or --passphrase-file: it must be the passphrase of this key"
            raise KeyFileError(path, "the passphrase is wrong, or the file damaged", hint) from None
        raise KeyFileError(path, "not a PEM private key", _GENERATE) from None
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyFileError(path, "it is not an Ed25519 key", _GENERATE)
    return SigningKey(private.private_bytes_raw())


def is_private_key(pem: bytes) -> bool:
    """Whether `pem` is an Ed25519 key, or a private key that is encrypted."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return isinstance(load_pem_private_key(pem, None), Ed25519PrivateKey)
    except TypeError:  # the library's word for "a passphrase is missing"
        return True
    except (ValueError, UnsupportedAlgorithm):
        return False


def read_passphrase(path: Path, *, guarded: bool = False) -> bytes:
    """The first line of `path`. Raises PassphraseFileError as `read_key` its own error, and for an empty or over-long
    line."""
    line = _read(path, PassphraseFileError, guarded=guarded).split(b"\n", 1)[0].rstrip(b"\r")
    if not 0 < len(line) <= MAX_PASSPHRASE_BYTES:
        cause = f"its first line must have 1 to {MAX_PASSPHRASE_BYTES} bytes"
        raise PassphraseFileError(path, cause, "write the passphrase into it")
    return line


def public_pem(key: SigningKey) -> str:
    """The public key as PEM (SubjectPublicKeyInfo, RFC 8410), for other tools."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = Ed25519PrivateKey.from_private_bytes(key.reveal_seed()).public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")


def _read(path: Path, refused: type[KeyFileError], *, guarded: bool) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hold us up
    except OSError as error:
        raise refused(path, os.strerror(error.errno or 0), refused.absent_hint) from None
    try:
        status = os.fstat(descriptor)  # of the opened file, not of the file that has the name now
        if not stat.S_ISREG(status.st_mode):
            raise refused(path, "it is not a regular file", "name the file itself")
        if not guarded:
            _check_access(path, refused, status)
        content = os.read(descriptor, MAX_KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_KEY_BYTES:
        raise refused(path, f"it has more than {MAX_KEY_BYTES} bytes", f"name the {refused.what} itself")
    return content


def _check_access(path: Path, refused: type[KeyFileError], status: os.stat_result) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise refused(path, f"it belongs to user {status.st_uid}", f"chown {os.geteuid()} {path}")
    if status.st_mode & 0o077:
        raise refused(path, f"others may read it (mode {status.st_mode & 0o777:04o})", f"chmod 600 {path}")
