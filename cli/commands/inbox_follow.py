"""`aghctl inbox follow`."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.app.message_text import event_line
from aghbus.cli.commands.work_watch import lost_note
from aghbus.cli.context import Context
from aghbus.client.events import follow
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Command


def run(context: Context, values: dict[str, Any]) -> int:
    """Stream unread messages, then new ones, until interrupted. Leases nothing."""
    for event in follow(context.api, [("inbox", True)], 0, lost_note(context)):
        context.output.event(event, event_line)
    return YES


COMMANDS = {
    "inbox follow": Command(
        run,
        description=(
            "Stream the messages for our agent: first the unacknowledged ones, then each as it arrives, one JSON object\n"
            "a line with -o jsonl. It leases nothing; `inbox next` does. Ends with Ctrl-C."
        ),
        examples=[
            "aghctl inbox follow",
            "aghctl inbox follow -o jsonl | while read -r line; do aghctl inbox next --ack; done",
        ],
    )
}
