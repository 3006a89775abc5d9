"""`aghctl inbox list`."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.app.message_text import body_line, not_delivered
from aghbus.cli.app.options import LIMIT
from aghbus.cli.app.text import moment, table
from aghbus.cli.context import Context
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Argument, Command


def run(context: Context, values: dict[str, Any]) -> int:
    """List messages without leasing any."""
    answer = context.api.get("/v1/inbox", [("state", values["state"]), ("limit", values["limit"])])
    context.output.rows(answer, "items", _human)
    if not answer["items"]:
        context.output.note("no message is waiting")
    return YES


def _human(answer: dict[str, Any]) -> str:
    if not answer["items"]:
        return ""
    return table(
        ["SEQ", "STATE", "ATTEMPTS", "FROM", "TRUST", "WORK", "RECEIVED", "MESSAGE"], map(_row, answer["items"])
    )


def _row(item: dict[str, Any]) -> tuple[object, ...]:
    message = item["message"]
    says = body_line(message["kind"], message["envelope"].get("body") or {})
    if (why := not_delivered(message)) is not None:
        says = f"NOT DELIVERED ({why}): {says}"
    came = moment(message["received_ms"])
    head = (item["seq"], item["state"], item["attempts"], message["sender"], message["trust"])
    return (*head, message["work_id"], came, says)


COMMANDS = {
    "inbox list": Command(
        run,
        description="List the messages for our agent, oldest first. Without --state: those that are not acknowledged.",
        examples=["aghctl inbox list", "aghctl inbox list --state dead -o json"],
        arguments=[
            Argument(
                "--state",
                action="append",
                choices=("ready", "leased", "acked", "dead"),
                help="only messages in this state",
            ),
            LIMIT,
        ],
    )
}
