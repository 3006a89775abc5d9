"""Daemons that the relay starts: the one that it is connected with, when none runs, or one of its session (docs/mcp.md)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping

from aghbus.client.errors import Unreachable, UsageError
from aghbus.client.http import Endpoint
from aghbus.host.files import make_private_folder
from aghbus.host.locations import Locations

STOP_SECONDS = 12.0
"""For the daemon to stop: its own deadline is 10 s."""
_UNIT_SECONDS = 10.0  # for systemd to start it
_SESSION_CHARACTERS = 8
_OWN = ("AGHD_NAME", "AGHD_PEER_ID", "AGHD_API_SOCKET", "AGHD_API_TCP", "AGHD_STORE_PATH")
"""Variables that say which instance a daemon is: those of the environment are of another one."""
_OF_HOSTS = ("CLAUDE", "ANTHROPIC", "CODEX", "OPENAI", "GEMINI", "GOOGLE", "CURSOR", "OPENCODE", "VSCODE")


def without_hosts(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of agent hosts: they have secrets, and a daemon outlives its host."""
    return {key: value for key, value in env.items() if not key.startswith(_OF_HOSTS)}


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
        own = {key: value for key, value in without_hosts(env).items() if key not in _OWN}
        before = _ending_with_parent() if sys.platform == "linux" else None
        self._process = subprocess.Popen(  # noqa: S603 - our own daemon
            [*_run(name), "--peer-id", name],
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
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


def start_if_away(
    find: Callable[[], Endpoint], name: str, places: Locations, env: Mapping[str, str]
) -> Callable[[], Endpoint]:
    """Start the instance `name` unless `find` finds a daemon: the user's systemd unit, else `aghd run`, which outlives the relay.
    Returns a `find` whose error says where the log of that start is."""
    try:
        find()
    except UsageError:
        return find  # which says so to the host
    except Unreachable:
        log = None if _start_unit(name, env) else _start(name, places, env)
    else:
        return find

    def found() -> Endpoint:
        try:
            return find()
        except Unreachable as error:
            why = f"its log is {log}" if log else f"systemctl --user status aghd@{name}"
            raise Unreachable(f"the daemon {name} was started, and is not there: {error.message}", why) from None

    return found


def _start(name: str, places: Locations, env: Mapping[str, str]) -> str:
    """Start `aghd run`; the path of its log, which is of this start alone."""
    make_private_folder(places.state_dir)
    path = f"{places.state_dir}/started-by-mcp.log"
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        subprocess.Popen(  # noqa: S603 - our own daemon
            _run(name),
            env=without_hosts(env),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
    return path


def _start_unit(name: str, env: Mapping[str, str]) -> bool:
    """Whether the user has installed the unit (docs/operations.md), and systemd has started it."""
    folder = f"{env.get('XDG_CONFIG_HOME') or env.get('HOME', '') + '/.config'}/systemd/user"
    if not any(os.path.exists(f"{folder}/aghd@{unit}.service") for unit in ("", name)):  # noqa: PTH110 - pathlib is slow
        return False
    command, nothing = ["systemctl", "--user", "start", f"aghd@{name}"], subprocess.DEVNULL
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            command, env=dict(env), stdin=nothing, stdout=nothing, stderr=nothing, timeout=_UNIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _run(name: str) -> list[str]:
    return [sys.executable, "-m", "aghbus.daemon", "run", "--name", name, "--quiet"]


def _ending_with_parent() -> Callable[[], None]:
    """What the child calls first, so that it gets SIGTERM when this process is killed (prctl(2), PR_SET_PDEATHSIG)."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(1, int(signal.SIGTERM), 0, 0, 0)
