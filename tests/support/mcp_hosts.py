"""The ends of an agent host that are woken: Claude Code's messaging socket, and the program `codex`."""

import json
import queue
import re
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

from tests.support.daemons import wait_for

SECRET = "5ecret-of-the-host"
REMEMBERED = 30.0  # seconds in which Claude Code drops a message that says the same as the one before
_VARYING = re.compile(r"^aghbus notice \d+: (.*?) up to seq \d+")


def words(notice: str) -> str:
    """A notice without its number and its sequence."""
    return _VARYING.sub(r"aghbus: \1", notice.rstrip("\n"))


class MessagingSocket:
    """Collects the lines of every connection, but for a message that repeats the one before: Claude Code drops it."""

    def __init__(self, path: Path) -> None:
        self.env = {
            "CLAUDE_CODE_MESSAGING_SOCKET": str(path),
            "CLAUDE_CODE_MESSAGING_TOKEN": SECRET,
        }
        self._notices: queue.Queue[list[Any]] = queue.Queue()
        self._last: tuple[float, object] = (0.0, None)
        self.dropped = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as file:
                self._take([json.loads(line) for line in file])

    def _take(self, lines: list[Any]) -> None:
        at, last = self._last
        self._last = (time.monotonic(), lines[-1])
        if lines[-1] == last and time.monotonic() - at < REMEMBERED:
            self.dropped += 1
        else:
            self._notices.put(lines)

    def receive(self, timeout: float = 30.0) -> str:
        """The words of the next notice; both lines must be as the host wants them."""
        auth, user = self._notices.get(timeout=timeout)
        assert auth == {"type": "auth", "token": SECRET}
        assert (user["type"], user["message"]["role"]) == ("user", "user")
        text: str = user["message"]["content"]
        return words(text)

    def more(self) -> int:
        """Notices that nobody has received."""
        return self._notices.qsize()


class CodexServer:
    """Codex's background server, as the relay sees it: its parent process, and a socket to which terminals are connected."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the home of Codex."""
        self._path = folder.with_suffix(".sock")  # short, and linked, as that of the real one
        link = folder / "app-server-control" / "app-server-control.sock"
        link.parent.mkdir(parents=True)
        link.symlink_to(self._path)
        self._terminals: list[socket.socket] = []
        self.env = {"CODEX_HOME": str(folder)}
        words = ("app-server", "--listen", "unix://")
        self.parent = (sys.executable, "-c", _CODEX_SERVER, str(self._path), *words)

    def open_terminal(self) -> None:
        wait_for(self._connects, 20, "the server")

    def _connects(self) -> bool:
        terminal = socket.socket(socket.AF_UNIX)
        try:
            terminal.connect(str(self._path))
        except OSError:
            terminal.close()
            return False
        self._terminals.append(terminal)
        return True

    def close_terminal(self) -> None:
        self._terminals.pop().close()


_CODEX_SERVER = """
import socket, subprocess, sys, threading
path, command = sys.argv[1], sys.argv[5:]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()

def serve():
    while True:
        connection = listener.accept()[0]
        threading.Thread(target=lambda: (connection.recv(1), connection.close()), daemon=True).start()

threading.Thread(target=serve, daemon=True).start()
sys.exit(subprocess.run(command).returncode)
"""


class CodexProgram:
    """A program `codex` that records its arguments, one JSON array a line."""

    def __init__(self, folder: Path, path: str) -> None:
        folder.mkdir()
        self._record = folder / "calls.jsonl"
        program = folder / "codex"
        program.write_text(
            "#!/usr/bin/env python3\nimport json, sys\n"
            f"open({str(self._record)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
        )
        program.chmod(0o755)
        self.env = {"PATH": f"{folder}:{path}"}

    def calls(self) -> list[list[str]]:
        if not self._record.exists():
            return []
        return [json.loads(line) for line in self._record.read_text().splitlines()]
