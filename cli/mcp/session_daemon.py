"""A daemon for one session of a host: the session is a peer of its own (docs/mcp.md, "Several sessions")."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping

STOP_SECONDS = 12.0
"""For the daemon to stop: its own deadline is 10 s."""
_SESSION_CHARACTERS = 8
_OWN = ("AGHD_NAME", "AGHD_PEER_ID", "AGHD_API_SOCKET", "AGHD_API_TCP", "AGHD_STORE_PATH")
"""Variables that say which instance a daemon is: those of the environment are of another one."""


def session_name(name: str, env: Mapping[str, str]) -> str:
    """The instance of a session: a session that Claude Code resumes is the same peer again, any other is a new one."""
    known = env.get("CLAUDE_CODE_SESSION_ID", "").lower().replace("-", "")[:_SESSION_CHARACTERS]
    if len(known) < _SESSION_CHARACTERS or not (known.isascii() and known.isalnum()):
        known = os.urandom(_SESSION_CHARACTERS // 2).hex()
    return f"{name}-{known}"


class SessionDaemon:
    """A running `aghd`, with the common configuration file. `stop` ends it; its store stays."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        """Start the instance `name`, which is its peer id, too. Its log goes to standard error."""
        command = [sys.executable, "-m", "aghbus.daemon", "run", "--name", name, "--peer-id", name, "--quiet"]
        own = {key: value for key, value in env.items() if key not in _OWN}
        nothing = subprocess.DEVNULL
        before = _ending_with_parent() if sys.platform == "linux" else None
        self._process = subprocess.Popen(  # noqa: S603 - our own daemon
            command,
            env=own,
            stdin=nothing,
            stdout=nothing,
            start_new_session=True,
            preexec_fn=before,  # noqa: PLW1509 - the relay has no threads yet
        )

    def stop(self) -> None:
        """End it in order."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _ending_with_parent() -> Callable[[], None]:
    """What the child calls first, so that it gets SIGTERM when this process is killed (prctl(2), PR_SET_PDEATHSIG)."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(1, int(signal.SIGTERM), 0, 0, 0)
