"""`aghctl mcp`, `mcp sessions` and `mcp hook stop`."""

from __future__ import annotations

import os
import signal
import sys
import threading

from aghbus.cli.app.arguments import lifetime
from aghbus.cli.app.errors import YES
from aghbus.cli.app.text import ago, counted, table
from aghbus.cli.context import Context
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from aghbus.cli.mcp.session import HostSession
    from aghbus.cli.mcp.waker import Rung
    from aghbus.client.http import Endpoint

AWAY_SECONDS = 15.0
"""How long a message of the host waits for a daemon that is away: Claude Code gives up a server that is silent for 30 s."""
HOOK_SECONDS = 3000.0
"""How long the Stop hook waits: less than the time that its installation allows it (cli/mcp/hosts.py)."""
MAY_WAKE = ("contacts", "all", "none")
_REWAKE = 2  # the exit code by which the host begins a turn, with the text on standard error


def run(context: Context, values: dict[str, Any]) -> int:
    """Relay between standard input and output and the daemon."""
    from aghbus.cli.mcp.link import Link
    from aghbus.cli.mcp.relay import Relay

    lock, out = threading.Lock(), sys.stdout.buffer

    def deliver(message: bytes) -> None:
        with lock:
            out.write(message.replace(b"\n", b" ") + b"\n")
            out.flush()

    signal.signal(signal.SIGTERM, _end)
    stop = _own_daemon(context) if values["peer_per_session"] else None
    link = Link(_finder(context, start=not (stop or values["no_start"])))
    session_id = f"{os.getpid()}-{os.urandom(4).hex()}"
    session, close = _session(context, link, deliver, session_id, wake=values["wake"])
    headers = {"Aghbus-Session": session_id, "Aghbus-Wake": values["wake"]}
    patience = AWAY_SECONDS if context.options["timeout"] is None else context.timeout
    try:
        Relay(link, deliver, session, patience, headers).run(iter(sys.stdin.buffer.readline, b""))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this process is ending already
        close()
        if stop is not None:
            stop()
    return YES


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(YES)


def _finder(context: Context, *, start: bool) -> Callable[[], Endpoint]:
    """What finds the daemon, which is started now if none runs and it is one of this host's instances."""
    from aghbus.client.locate import find

    def found() -> Endpoint:
        return find(context.options, context.env)

    named = context.options["socket"] or context.options["api"] or context.env.get("AGHD_API_SOCKET")
    if not start or named or context.places.system:
        return found
    from aghbus.cli.mcp.daemons import start_if_away

    return start_if_away(found, context.instance, context.places, context.env)


def _own_daemon(context: Context) -> Callable[[], None]:
    """Start a daemon for this session, which the options name from now on; returns what ends it. Raises UsageError."""
    from aghbus.cli.mcp.daemons import SessionDaemon, session_name

    if context.options["socket"] or context.options["api"]:
        raise UsageError("--peer-per-session starts a daemon of its own", "leave out --socket and --api")
    context.options["name"] = session_name(context.instance, context.env)
    context.places  # noqa: B018 - a name that is too long is refused here
    return SessionDaemon(context.options["name"], context.env).stop


def _session(
    context: Context,
    link: Endpoint,
    deliver: Callable[[bytes], None],
    session_id: str,
    *,
    wake: str,
) -> tuple[HostSession, Callable[[], None]]:
    """The session of the host, and what to call at its end."""
    from aghbus.cli.mcp.hook import HookListener
    from aghbus.cli.mcp.rungs import ClaudeSocket, CodexQueue, Notification
    from aghbus.cli.mcp.session import HostSession
    from aghbus.cli.mcp.waker import Waker
    from aghbus.client.api import Api

    waker = Waker(
        lambda: Api(link, context.timeout),
        session_id,
        context.output.note,
        contacts=wake == "contacts",
    )
    session = HostSession(context.env, waker.tool, waker.task, waker.changed)
    ways: list[Rung] = []
    hooks = HookListener(context.places.socket_dir, waker.changed)
    if wake != "none":
        hooks.start()
        ways = [ClaudeSocket(session), hooks, CodexQueue(session), Notification(session, deliver)]
    waker.attach(session, ways)

    def close() -> None:
        hooks.close()
        waker.close()

    return session, close


def run_sessions(context: Context, _values: dict[str, Any]) -> int:
    """List the sessions of hosts."""
    answer = context.api.get("/v1/mcp/sessions")
    context.output.rows(answer, "sessions", _human, "no agent host is connected")
    return YES


def _human(answer: dict[str, Any]) -> str:
    titles = ["ID", "HOST", "STARTED", "LAST CALL", "WOKEN BY", "LATEST NOTICE", "HELD BACK"]
    return table(titles, map(_row, answer["sessions"]))


def _row(session: dict[str, Any]) -> tuple[object, ...]:
    host = f"{session['host'] or '-'} {session['host_version']}".strip()
    ways = (", ".join(session["wakes_by"]) or "none") if session["open"] else "none: its terminal is closed"
    called = ago(session["called_ms"]) if session["called_ms"] else "-"
    held_back = ", ".join(session["held_back"]) or "-"
    return (session["id"], host, ago(session["started_ms"]), called, ways, _notice(session["notice"]), held_back)


def _notice(notice: dict[str, Any] | None) -> str:
    if notice is None:
        return "-"
    how = f" ({notice['how']})" if notice["how"] else ""
    held = ", perhaps held by the host" if notice["state"] == "noticed" and notice["attempts"] > 1 else ""
    return f"{notice['state']}{how} {ago(notice['changed_ms'])}: {counted(notice['messages'], 'message')}{held}"


def run_stop_hook(context: Context, values: dict[str, Any]) -> int:
    """Wait for a notice of the host's relays."""
    from aghbus.cli.mcp.hook import unattended, wait_for_notice

    if unattended(context.env):
        return YES
    notice = wait_for_notice(context.places.socket_dir, values["wait"])
    if notice is None:
        return YES
    context.output.note(notice)
    return _REWAKE


COMMANDS = {
    "mcp": Command(
        run,
        description=(
            "Serve the Model Context Protocol on standard input and output, for a host that starts it (docs/mcp.md). Every\n"
            "message goes to the daemon, which is started if none runs: by systemctl --user where the unit aghd@ is installed.\n"
            "While the daemon is away, messages wait for it for 15 seconds. When messages for the agent arrive, the session of\n"
            "the host is woken with a notice, in the best way that the host offers."
        ),
        examples=["aghctl mcp", "aghctl --name ops mcp"],
        arguments=[
            Argument(
                "--wake",
                choices=MAY_WAKE,
                default=MAY_WAKE[0],
                help="whose messages wake the session (default contacts); those of others are named in the next notice",
            ),
            Argument("--no-start", action="store_true", help="do not start the daemon"),
            Argument(
                "--peer-per-session",
                action="store_true",
                help="start a daemon for this session, so that it is a peer of its own, and end it with the session",
            ),
        ],
    ),
    "mcp sessions": Command(
        run_sessions,
        description=(
            "List the sessions of agent hosts at this daemon: how each is woken, and the state of its latest notice (stored,\n"
            "noticed, fetched, acked)."
        ),
        examples=["aghctl mcp sessions", "aghctl --name ops mcp sessions -o json"],
    ),
    "mcp hook stop": Command(
        run_stop_hook,
        description=(
            "Wait for a notice, as a Stop hook of Claude Code: exits with 2 and the notice on standard error, or with 0 when\n"
            "there is none in time or no relay of this host."
        ),
        examples=["aghctl mcp hook stop", "aghctl mcp hook stop --wait 10m"],
        arguments=[
            Argument(
                "--wait", metavar="TIME", type=lifetime, default=HOOK_SECONDS, help="how long to wait (default 50m)"
            )
        ],
    ),
}
