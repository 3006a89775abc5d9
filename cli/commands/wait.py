"""`aghctl wait`."""

from __future__ import annotations

import time
from collections.abc import Callable

from aghbus.cli.app.arguments import peer
from aghbus.cli.app.completers import capabilities, peers
from aghbus.cli.app.errors import YES, AnswerIsNo
from aghbus.cli.app.options import CHANNEL, one_of
from aghbus.cli.app.text import safe
from aghbus.cli.commands.whois import ask
from aghbus.cli.context import Context
from aghbus.client.errors import ClientError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

ASK_AGAIN_SECONDS = 1.0
"""Seconds between two questions to peers."""
POLL_SECONDS = 0.1
"""Seconds between two looks at the daemon."""


def run(context: Context, values: dict[str, Any]) -> int:
    """Wait for `--timeout` at most; raises AnswerIsNo, or the last error when the daemon was not reached."""
    one_of(values, "ready", "peer", "capability")
    deadline = time.monotonic() + context.timeout
    _until(deadline, POLL_SECONDS, lambda: _ready(context))
    found = None
    if values["peer"] or values["capability"]:
        found = _until(deadline, ASK_AGAIN_SECONDS, lambda: _present(context, values, deadline - time.monotonic()))
    context.output.answer({"ready": True, "peer": found}, lambda answer: _human(answer["peer"]))
    return YES


def _until(deadline: float, pause: float, look: Callable[[], Any]) -> Any:
    """The first result of `look`, which raises a ClientError while there is none; an error that may not pass is raised at once."""
    while True:
        try:
            return look()
        except ClientError as error:
            left = deadline - time.monotonic()
            if left <= 0 or not (error.is_transient or isinstance(error, AnswerIsNo)):
                raise
        time.sleep(min(pause, left))


def _ready(context: Context) -> None:
    if not context.api.get("/v1/status")["ready"]:
        hint = "see `aghctl status`"
        raise AnswerIsNo(f"the daemon was not ready within {context.timeout:g} s", hint, "timeout")


def _present(context: Context, values: dict[str, Any], left: float) -> dict[str, Any]:
    """The answer of a peer to one whois (`WhoisMatch`)."""
    wanted = values["capability"]
    body = {"query": wanted or "", "to": values["peer"], "channel": values["channel"], "first": not wanted}
    for found in ask(context, {**body, "wait": min(ASK_AGAIN_SECONDS, max(left, 0.0))})["peers"]:
        if not wanted or wanted in found["card"]["capabilities"]:
            return dict(found)
    who = f"peer with the capability {wanted}" if wanted else f"answer of the peer {values['peer']}"
    raise AnswerIsNo(f"no {who} within {context.timeout:g} s", "`aghctl peers` lists the known ones", "timeout")


def _human(found: dict[str, Any] | None) -> str:
    return safe(found["peer_id"]) if found else "ready"


COMMANDS = {
    "wait": Command(
        run,
        description=(
            "Wait until the daemon runs and is ready, or until a peer answers, for --timeout (default 30s) at most. Prints\n"
            "`ready`, or the id of the peer. Exits 1 if that did not happen in time, 3 if no daemon was reached."
        ),
        examples=[
            "aghctl wait --timeout 10s",
            "aghctl wait --peer patch-worker",
            "aghctl --name ops wait --capability test.run --timeout 1m",
        ],
        arguments=[
            Argument("--ready", action="store_true", help="until the daemon is ready (the default)"),
            Argument("--peer", metavar="PEER", type=peer, completer=peers, help="until this peer answers"),
            Argument(
                "--capability", metavar="ID", completer=capabilities, help="until a peer with this capability answers"
            ),
            CHANNEL,
        ],
    )
}
