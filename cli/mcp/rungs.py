"""The ways to tell a session of a host that messages wait, each with the facts that it needs (docs/mcp.md, "Waking").

A way that succeeds has handed the notice over; whether the host shows it is known only when the session fetches its messages.
"""

from __future__ import annotations

import json
import os
from _socket import AF_UNIX, SOCK_STREAM, socket
from collections.abc import Callable

from aghbus.cli.mcp.session import HostSession, inbox_changed

_SOCKET_SECONDS = 5.0
_COMMAND_SECONDS = 30.0


class ClaudeSocket:
    """Claude Code's messaging socket: a line with the token, and a line with the notice as a message to the session.

    The message names no session: the id that the relay was started with is wrong after `/clear`, and the host would drop it.
    """

    name = "claude-socket"

    def __init__(self, session: HostSession) -> None:
        self._path = session.env.get("CLAUDE_CODE_MESSAGING_SOCKET", "")
        self._token = session.env.get("CLAUDE_CODE_MESSAGING_TOKEN", "")
        self._session = session

    def available(self) -> bool:
        """Whether the host is Claude Code, gave both facts, and the socket is there.

        Another host that was started inside a session of Claude Code passes on facts that are not its own.
        """
        facts = self._session.host.startswith("claude") and self._path and self._token
        return bool(facts) and os.path.exists(self._path)  # noqa: PTH110 - pathlib is slow to load

    def tell(self, notice: str) -> bool:
        """Write both lines. The host answers nothing."""
        message = {"role": "user", "content": notice}
        lines = ({"type": "auth", "token": self._token}, {"type": "user", "message": message})
        connection = socket(AF_UNIX, SOCK_STREAM)
        try:
            connection.settimeout(_SOCKET_SECONDS)
            connection.connect(self._path)
            connection.sendall("".join(json.dumps(line) + "\n" for line in lines).encode())
        except OSError:
            return False
        finally:
            connection.close()
        return True


class CodexQueue:
    """`codex queue`, for the thread that a tool call named."""

    name = "codex-queue"

    def __init__(self, session: HostSession) -> None:
        self._session = session

    def available(self) -> bool:
        """Whether the thread is known and the program is there."""
        return bool(self._session.thread_id) and self._program() is not None

    def tell(self, notice: str) -> bool:
        """Queue the notice; exit code 0 means that it is queued."""
        import subprocess  # slow to load, and seldom needed

        program = self._program()
        if program is None:
            return False
        command = [program, "queue", "--thread", self._session.thread_id, "--message", notice]
        nothing = subprocess.DEVNULL
        try:
            done = subprocess.run(  # noqa: S603 - no shell; the thread is the host's, the notice is ours
                command, stdin=nothing, stdout=nothing, stderr=nothing, timeout=_COMMAND_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    def _program(self) -> str | None:
        folders = self._session.env.get("PATH", "").split(":")
        paths = [f"{folder}/codex" for folder in folders if folder.startswith("/")]
        return next((path for path in paths if os.access(path, os.X_OK)), None)


class Notification:
    """The protocol's own notification, for a legacy host that subscribed to the inbox."""

    name = "notification"

    def __init__(self, session: HostSession, deliver: Callable[[bytes], None]) -> None:
        self._session = session
        self._deliver = deliver

    def available(self) -> bool:
        """Whether the host subscribed."""
        return self._session.subscribed

    def tell(self, notice: str) -> bool:
        """Send it: it has the URI of the inbox only."""
        self._deliver(inbox_changed())
        return True
