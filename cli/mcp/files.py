"""Replacing a host's configuration file as a whole, so that no reader sees a part of it."""

from __future__ import annotations

import os

from aghbus.cli.mcp.config_text import Broken
from aghbus.cli.mcp.hosts import Change
from aghbus.client.errors import ConfigurationError
from aghbus.host.files import make_private_folder, sync_folder

_ATTEMPTS = 10


def rewrite(change: Change) -> bool:
    """Apply `change` to its file; whether the file differs. A file that is not there is empty.

    The mode stays; a symbolic link is followed. If the file changes meanwhile, `change` is applied again. Raises
    ConfigurationError.
    """
    path = os.path.realpath(change.path)
    try:
        for _ in range(_ATTEMPTS):
            before = _read(path)
            text = before.decode()
            after = change.apply(text)
            if after == text:
                return False
            if _replace(path, before, after.encode()):
                return True
    except (Broken, UnicodeError) as error:
        raise ConfigurationError(f"{path} cannot be changed: {error}", _by_hand(change)) from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    raise ConfigurationError(f"{path} changes all the time", "end its program, and try again")


def require_within(folder: str, wanted: list[Change]) -> None:
    """Raise ConfigurationError for a change that a symbolic link leads out of `folder`: a checkout may bring one."""
    inside = os.path.realpath(folder)
    for path, real in ((change.path, os.path.realpath(change.path)) for change in wanted):
        if os.path.commonpath((inside, real)) != inside:
            raise ConfigurationError(f"{path}: a symbolic link leads out of the project to {real}", "remove the link")


def _by_hand(change: Change) -> str:
    """What to do with a file that cannot be changed."""
    added = change.apply("")
    if not added:
        return "correct it, or remove the entry yourself"
    if change.path.endswith(".toml"):
        return "correct it, or add what --print shows yourself"
    return "correct it, or add this yourself: " + " ".join(line.strip() for line in added.splitlines())


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is slow to load
            return file.read()
    except FileNotFoundError:
        return b""


def _replace(path: str, before: bytes, after: bytes) -> bool:
    """False if the file does not hold `before` any more."""
    folder = os.path.dirname(path)  # noqa: PTH120 - pathlib is slow to load
    make_private_folder(folder)
    temporary = f"{path}.{os.getpid()}.aghctl"
    try:
        mode = os.stat(path).st_mode & 0o7777  # noqa: PTH116 - as above
    except FileNotFoundError:
        mode = 0o600
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(after)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        if _read(path) != before:
            return False
        os.replace(temporary, path)  # noqa: PTH105 - as above
        temporary = ""
    finally:
        if temporary:
            os.unlink(temporary)  # noqa: PTH108 - as above
    sync_folder(folder)
    return True
