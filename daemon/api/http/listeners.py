"""The sockets that the API listens on: a Unix socket that only its owner can open, and a TCP port on loopback.

Two daemons that start at the same moment must not remove each other's socket: a lock (flock) on its folder covers
the check, the removal and the bind.
"""

import grp
import os
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from aghbus.daemon.api.http.tcp_guard import MIN_TOKEN_CHARACTERS
from aghbus.host.file_lock import poll_lock, try_lock
from aghbus.host.files import make_private_folder
from aghbus.host.locations import (
    SOCKET_PATH_LIMIT_ELSEWHERE,
    SOCKET_PATH_LIMIT_LINUX,
    LocationError,
    check_socket_path,
    private_folder_problem,
)
from aghbus.protocol.base.addresses import is_loopback
from aghbus.protocol.base.errors import AghbusError

BACKLOG: Final = 512
"""Connections that may wait for the loop; ours, as many as it keeps open: beyond MAX_CONNECTIONS they get an answer too."""

LOCK_SECONDS: Final = 5.0
"""Seconds to wait for another daemon that is starting in the same folder."""

PROBE_SECONDS: Final = 1.0
"""Seconds that a connection attempt may take; a full backlog also means that the listener is alive."""


class ListenError(AghbusError):
    """The API cannot listen. `key` names the setting at fault, `message` the cause, `hint` the way out."""

    def __init__(self, key: str, message: str, hint: str) -> None:
        super().__init__(f"{key}: {message} ({hint})" if hint else f"{key}: {message}")
        self.key = key
        self.message = message
        self.hint = hint


class UnixListener:
    """A bound and listening Unix socket, and its file."""

    def __init__(self, sock: socket.socket, path: Path) -> None:
        """`sock` listens on `path` already."""
        self.socket = sock
        self._path = path
        self._file = path.stat()

    def remove(self) -> None:
        """Remove the socket's file, unless another process has replaced it."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self._path.lstat(), self._file):
                self._path.unlink()


async def listen_unix(path: Path, *, private_folder: bool, group: int | None = None) -> UnixListener:
    """Listen on `path` with mode 0600, or 0660 for the group id `group`. A folder that is missing is made with mode 0700.

    `private_folder` says that the folder must be ours alone. Raises ListenError: the path is too long, the folder is
    unfit, another daemon listens there, a file that is not a socket exists there, or the group cannot be given.
    """
    if group is not None and private_folder:
        raise ListenError(
            "api.socket_group", "the default folder of the socket is private", "name the socket with api.socket"
        )
    try:
        check_socket_path(
            str(path), SOCKET_PATH_LIMIT_LINUX if sys.platform == "linux" else SOCKET_PATH_LIMIT_ELSEWHERE
        )
        _make_folder(path.parent, private=private_folder)
        async with _locked(path.parent):
            _clear(path)
            return _bind_unix(path, group)
    except LocationError as error:
        raise ListenError(error.key, error.rule, error.hint) from None
    except OSError as error:
        raise ListenError(
            "api.socket", f"cannot listen on {str(path)!r}: {error.strerror}", "see api.socket"
        ) from error


def group_id(named: str) -> int:
    """The id of the group called `named`, or a number. Raises ListenError: the group is unknown, or its members cannot be told."""
    if sys.platform != "linux":
        raise ListenError("api.socket_group", "only Linux tells the groups of a client", "remove it")
    try:
        return int(named) if named.isdecimal() else grp.getgrnam(named).gr_gid
    except KeyError:
        raise ListenError(
            "api.socket_group", f"there is no group {named!r}", "make the group, or use a number"
        ) from None


def listen_tcp(host: str, port: int) -> socket.socket:
    """Listen on `host` (`port` 0: any free one). Raises ListenError, so for a non-loopback host."""
    if not is_loopback(host):
        raise ListenError("api.tcp", f"{host!r} is not a loopback address", "use 127.0.0.1 or [::1]")
    return listen_address("api.tcp", host, port)


def checked_token(token: str | None) -> str:
    """The token of the TCP listener. Raises ListenError."""
    if token is None or len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable():
        raise ListenError(
            "api.token_file",
            f"needs a token of {MIN_TOKEN_CHARACTERS} or more printable ASCII characters",
            "generate one: openssl rand -hex 32",
        )
    return token


def listen_address(key: str, host: str, port: int) -> socket.socket:
    """Listen on the address `host`, or on `localhost` (`port` 0: any free one). Raises ListenError, which names setting `key`."""
    address = "127.0.0.1" if host == "localhost" else host
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ListenError(
            key, f"cannot listen on {host}:{port}: {error.strerror}", "choose another address or port"
        ) from error
    return sock


def _make_folder(folder: Path, *, private: bool) -> None:
    make_private_folder(folder)
    if private:
        found = folder.lstat()
        problem = private_folder_problem(found.st_mode, found.st_uid, os.getuid())
        if problem:
            raise ListenError(
                "api.socket", f"the folder {str(folder)!r} {problem}", "remove it, or name another socket"
            )


@asynccontextmanager
async def _locked(folder: Path) -> AsyncIterator[None]:
    """Hold the folder's lock; closing the descriptor releases it."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        if not await poll_lock(partial(try_lock, handle), LOCK_SECONDS):
            raise ListenError("api.socket", f"another process holds a lock on {str(folder)!r}", "try again")
        yield
    finally:
        os.close(handle)


def _clear(path: Path) -> None:
    """Remove a stale socket, which no process listens on. Raises ListenError for anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ListenError(
            "api.socket", f"{str(path)!r} exists and is not a socket", "move it away, or name another socket"
        )
    if _is_live(path):
        raise ListenError("api.socket", f"another daemon listens on {str(path)!r}", "stop it, or choose another --name")
    path.unlink()


def _is_live(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:  # a full backlog, or a socket of another user: in use
            return True
    return True


def _bind_unix(path: Path, group: int | None) -> UnixListener:
    sock = socket.socket(socket.AF_UNIX)
    # No client can connect before listen(), and the mask leaves bits to the owner alone.
    mask = os.umask(0o077)
    try:
        sock.bind(str(path))
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(mask)
    try:
        _give_to_group(path, group)
    except ListenError:
        sock.close()
        path.unlink()
        raise
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return UnixListener(sock, path)


def _give_to_group(path: Path, group: int | None) -> None:
    try:
        if group is not None and path.stat().st_gid != group:
            os.chown(path, -1, group)  # not for our own group: a filter of system calls may refuse chown
        path.chmod(0o600 if group is None else 0o660)
    except OSError as error:
        reason = f"the socket cannot be given to group {group}: {error.strerror}"
        raise ListenError("api.socket_group", reason, "run the daemon as a member of the group") from None
