"""`aghctl capability send`."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.app.message_text import sent_line
from aghbus.cli.app.options import SENDING, THREAD, one_of, sending
from aghbus.cli.commands.capability import record
from aghbus.cli.context import Context
from aghbus.client.errors import RefusedByDaemon
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Argument, Command


def run(context: Context, values: dict[str, Any]) -> int:
    """Send one record; raises RefusedByDaemon when there is only a claim to it."""
    one_of(values, "thread", "direct")
    one_of(values, "direct", "to")
    entry = record(context, values["capability"])
    if entry["document"] is None:
        raise RefusedByDaemon(
            f"{values['capability']} is a claim without a record", "write its record into the catalog", "not_found"
        )
    context.output.answer(context.api.post("/v1/messages", request_body(values, entry["document"])), sent_line)
    return YES


def request_body(values: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The request body (`SendRequest`)."""
    return {
        "kind": "capability",
        "body": {"capability": document},
        "to": values["direct"] or values["to"],
        "direct": bool(values["direct"]),
        "thread_id": values["thread"],
        **sending(values),
    }


COMMANDS = {
    "capability send": Command(
        run,
        description=(
            "Send a record of our catalog with its digest: to one peer, into the direct room with it, or to everybody in the\n"
            "channel. It opens no work; `aghctl work open --capability ID` does."
        ),
        examples=["aghctl capability send test.run --to ops", "aghctl capability send test.run"],
        arguments=[
            Argument("capability", help="id in our own catalog"),
            Argument("--to", metavar="PEER", help="receiver (default: everybody)"),
            Argument("--direct", metavar="PEER", help="send it in the direct room with this peer"),
            THREAD,
            *SENDING,
        ],
    )
}
