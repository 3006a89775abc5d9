"""Bearer tokens of callers: a file with one `NAME TOKEN` a line. A changed file counts from the next request on."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat

from aghbus.client import UsageError
from aghbus.host.files import is_exposed
from aghbus.protocol.formats.a2a.ids import Principal, principal_name
from aghbus.protocol.formats.a2a.parts import Json

LEAST_CHARACTERS = 16
MAX_FILE_BYTES = 1 << 20


class Tokens:
    """The tokens in a file. Only their hashes are kept."""

    def __init__(self, path: str) -> None:
        """Raises UsageError for a file that cannot be used."""
        self._path = path
        self._version, self._names = self._read()

    def scheme(self) -> tuple[str, Json]:
        """The security scheme in cards."""
        return "bearer", {
            "httpAuthSecurityScheme": {"scheme": "bearer", "description": "A token that the operator gave you."}
        }

    async def caller(self, token: str) -> Principal | None:
        """Who has this token; None if nobody has it, or the file cannot be read any more."""
        try:
            status = os.stat(self._path)  # noqa: PTH116 - a local file
            if self._version != _version(status):
                self._version, self._names = self._read()
        except (OSError, UsageError):
            return None
        given, found = _hash(token), None
        for known, name in self._names:  # all of them: how long it takes says nothing
            if hmac.compare_digest(known, given):
                found = name
        return None if found is None else Principal(found)

    def _read(self) -> tuple[tuple[int, ...], list[tuple[bytes, str]]]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise UsageError(f"--callers: {self._path} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"--callers: {self._path} is not a regular file")
            if is_exposed(status):
                mode = f"{stat.S_IMODE(status.st_mode):04o}"
                raise UsageError(f"--callers: others may read {self._path} (mode {mode})", f"chmod 600 {self._path}")
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise UsageError(f"--callers: {self._path} has more than {MAX_FILE_BYTES} bytes")
        return _version(status), self._parsed(content)

    def _parsed(self, content: bytes) -> list[tuple[bytes, str]]:
        found = dict[bytes, str]()
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
            if not (words := line.split()) or words[0].startswith("#"):
                continue
            where = f"--callers: {self._path}, line {number}"
            if len(words) != 2 or principal_name(words[0]) != words[0]:
                raise UsageError(f"{where}: must be NAME TOKEN", "a name begins with a letter or digit")
            if len(words[1]) < LEAST_CHARACTERS:
                raise UsageError(f"{where}: a token has {LEAST_CHARACTERS} characters or more", "openssl rand -hex 32")
            if _hash(words[1]) in found:
                raise UsageError(f"{where}: another name has this token")
            found[_hash(words[1])] = words[0]
        if not found:
            raise UsageError(f"--callers: {self._path} has no callers", "write a line NAME TOKEN for each")
        return [*found.items()]


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode
