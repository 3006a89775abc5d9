"""`aghctl traces`."""

from __future__ import annotations

from aghbus.cli.app.arguments import whole
from aghbus.cli.app.completers import peers, works
from aghbus.cli.app.errors import YES
from aghbus.cli.app.message_text import event_line
from aghbus.cli.app.options import CHANNEL
from aghbus.cli.commands.work_watch import lost_note
from aghbus.cli.context import Context
from aghbus.cli.ids import whole_work
from aghbus.client.events import follow
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any


def run(context: Context, values: dict[str, Any]) -> int:
    """Stream until interrupted."""
    since = values["since"]
    if since is None:  # a named start, not "now", so that a restart of the daemon before the first event leaves no hole
        since = context.api.get("/v1/status")["store"]["last_seq"]
    what = "messages" if values["all"] else "traces and receipts"
    context.output.waiting(f"waiting for {what} after #{since}; Ctrl-C ends it")
    for event in follow(context.api, query(values), since, lost_note(context)):
        context.output.event(event, event_line)
    return YES


def query(values: dict[str, Any]) -> list[tuple[str, object]]:
    """The filters of the event stream."""
    kinds = [] if values["all"] else ["trace", "receipt"]
    return [("kind", kinds), *((name, values[name]) for name in ("work", "thread", "direct", "peer", "channel"))]


COMMANDS = {
    "traces": Command(
        run,
        description=(
            "Stream sent and received traces and receipts as they are stored. Begins now, or after\n"
            "--since; resumes automatically when the daemon restarts. Ends with Ctrl-C."
        ),
        examples=["aghctl traces", "aghctl traces --work WORK_ID --since 0 -o jsonl", "aghctl traces --all --peer ops"],
        arguments=[
            Argument("--work", metavar="ID", completer=works, resolve=whole_work, help="only of this work"),
            Argument("--thread", metavar="ID", help="only in this thread"),
            Argument("--direct", metavar="ID", help="only in this direct room"),
            Argument("--peer", completer=peers, help="only from or to this peer"),
            CHANNEL,
            Argument("--since", metavar="SEQ", type=whole, help="begin after this local sequence; 0 is the beginning"),
            Argument("--all", action="store_true", help="every kind of message, not only traces and receipts"),
        ],
    )
}
