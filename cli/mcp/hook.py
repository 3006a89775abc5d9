"""Claude Code's Stop hook: a process that the host starts when a turn ends, and whose exit code 2 begins the next one.

The relay listens on a Unix socket whose name has the process id of its parent, the host. The hook is started by the same host: it
finds the socket by the ids of the processes above it, and waits for one line. A hook that still waits when the next one comes, or
when the session ends, gets the end of the connection in place of a line.
"""

from __future__ import annotations

import os
import select
import threading
import time
from _socket import AF_UNIX, MSG_DONTWAIT, MSG_PEEK, SOCK_STREAM, socket
from collections.abc import Callable, Mapping

from aghbus.host.files import make_private_folder
from aghbus.host.locations import private_folder_problem

FOLDER = "mcp"
"""Below the folder of the daemons' sockets."""
_MAX_BYTES = 4096  # of a notice
_MAX_ANCESTORS = 32


class HookListener:
    """The relay's end. It is a way to wake the host while a hook is connected (rungs.py)."""

    name = "stop-hook"

    def __init__(self, socket_dir: str, on_change: Callable[[], None]) -> None:
        """`socket_dir` is the folder of the daemons' sockets; `on_change` is called when a hook begins to wait."""
        self._path = f"{socket_dir}/{FOLDER}/{os.getppid()}-{os.getpid()}.sock"
        self._on_change = on_change
        self._hook: socket | None = None
        self._listener: socket | None = None

    def start(self) -> None:
        """Listen. Where that is impossible, hooks find nobody, and end."""
        folder = self._path.rpartition("/")[0]
        try:
            make_private_folder(folder)
            status = os.lstat(folder)
            if private_folder_problem(status.st_mode, status.st_uid, os.getuid()):
                return
            listener = socket(AF_UNIX, SOCK_STREAM)
            self._remove()
            listener.bind(self._path)
            listener.listen(4)
        except OSError:
            return
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket) -> None:
        while True:
            try:
                descriptor, _ = listener._accept()  # type: ignore[attr-defined]  # what socket.accept stands on
            except OSError:
                return
            before, self._hook = self._hook, socket(fileno=descriptor)
            if before is not None:
                before.close()
            self._on_change()

    def available(self) -> bool:
        """Whether a hook waits."""
        hook = self._hook
        if hook is None:
            return False
        try:
            return bool(hook.recv(1, MSG_PEEK | MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def tell(self, notice: str) -> bool:
        """Let the hook end with the notice."""
        hook, self._hook = self._hook, None
        if hook is None:
            return False
        try:
            hook.sendall(notice.encode() + b"\n")
        except OSError:
            return False
        finally:
            hook.close()
        return True

    def close(self) -> None:
        """Stop listening; a hook that waits ends."""
        if self._listener is not None:
            self._remove()
        if self._hook is not None:
            self._hook.close()

    def _remove(self) -> None:
        try:  # noqa: SIM105 - contextlib is slow to load
            os.unlink(self._path)  # noqa: PTH108 - pathlib is slow to load
        except OSError:
            pass


def unattended(env: Mapping[str, str]) -> bool:
    """Whether Claude Code runs without a person (`claude --print`, its SDK): it would not end before the hook does."""
    return env.get("CLAUDE_CODE_SESSION_ATTENDED") == "0" or env.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk")


def wait_for_notice(socket_dir: str, seconds: float) -> str | None:
    """The notice of the first relay of this process's host that has one; None when there is none in time, or no relay."""
    waiting = _connections(f"{socket_dir}/{FOLDER}")
    deadline = time.monotonic() + seconds
    while waiting and (left := deadline - time.monotonic()) > 0:
        readable, _, _ = select.select(waiting, (), (), left)
        for connection in readable:
            if line := connection.recv(_MAX_BYTES):
                return line.decode("utf-8", "replace").removesuffix("\n")
            waiting.remove(connection)
    return None


def _connections(folder: str) -> list[socket]:
    try:
        status = os.lstat(folder)
        names = sorted(os.listdir(folder))  # noqa: PTH208 - pathlib is slow to load
    except OSError:
        return []
    if private_folder_problem(status.st_mode, status.st_uid, os.getuid()):
        return []
    hosts = ancestors()
    found = []
    for name in names:
        if name.partition("-")[0] in hosts:
            connection = socket(AF_UNIX, SOCK_STREAM)
            try:
                connection.connect(f"{folder}/{name}")
            except OSError:
                connection.close()
            else:
                found.append(connection)
    return found


def ancestors() -> set[str]:
    """The ids of the processes above this one, without the first process of the system."""
    found: list[str] = []
    parent = str(os.getppid())
    while parent not in ("", "0", "1") and parent not in found and len(found) < _MAX_ANCESTORS:
        found.append(parent)
        parent = _parent(parent)
    return set(found)


def _parent(process: str) -> str:
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[1]
    except FileNotFoundError:
        import subprocess  # where there is no /proc

        command = ["ps", "-o", "ppid=", "-p", process]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
