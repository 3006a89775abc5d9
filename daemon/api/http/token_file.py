"""The token of the TCP listener: read from a file with restricted access, or created there at the first start."""

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from aghbus.daemon.api.http.listeners import ListenError
from aghbus.host.locations import token_file_problem

MAX_TOKEN_BYTES: Final = 4_096
"""Bytes of a token file; a generated token has 43 characters."""

_KEY: Final = "api.token_file"
_TOKEN_BYTES: Final = 32  # of randomness in a generated token


def read_token(path: Path, env: Mapping[str, str], *, make: bool) -> str:
    """The token in `path`; with `make`, a new one is written there (mode 0600) when the file is missing.

    Raises ListenError: it is missing, cannot be read, or other users may use it (`token_file_problem`).
    """
    if make:
        with suppress(FileExistsError):
            _make(path)
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            raw = file.read(MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise ListenError(_KEY, f"cannot read {str(path)!r}: {error.strerror}", "name a file with a token") from None
    if problem := token_file_problem(str(path), found.st_mode, env):
        raise ListenError(_KEY, f"{str(path)!r} {problem}", f"run chmod 600 {path}")
    if found.st_uid not in (os.geteuid(), 0):
        raise ListenError(_KEY, f"{str(path)!r} belongs to another user", "name a file of your own")
    if len(raw) > MAX_TOKEN_BYTES or not raw.isascii():
        raise ListenError(_KEY, f"{str(path)!r} contains no token", "generate one: openssl rand -hex 32")
    return raw.decode("ascii").strip()


def _make(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise
    except OSError as error:
        raise ListenError(_KEY, f"cannot write {str(path)!r}: {error.strerror}", "name another file") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
