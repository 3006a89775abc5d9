"""`aghctl inbox list` and `inbox follow`: neither leases a message."""

from __future__ import annotations

from aghbus.cli.app.arguments import whole
from aghbus.cli.app.errors import YES
from aghbus.cli.app.message_text import body_line, event_line, not_delivered
from aghbus.cli.app.options import LIMIT
from aghbus.cli.app.text import Id, State, moment, table
from aghbus.cli.commands.requests import note_others
from aghbus.cli.commands.work_watch import lost_note
from aghbus.cli.context import Context
from aghbus.cli.watch import WATCH, watch
from aghbus.client.events import follow
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any


def run_list(context: Context, values: dict[str, Any]) -> int:
    """List messages without leasing any."""
    query = [(name, values[name]) for name in ("state", "since", "limit")]
    if values["watch"]:
        watch(context, lambda: context.api.get("/v1/inbox", query), inbox_table, _rows)
    answer = context.api.get("/v1/inbox", query)
    context.output.rows(answer, "items", inbox_table, "no message is waiting")
    note_others(context, answer)
    if answer["next_since"] is not None:
        context.output.note(f"there are more: --since {answer['next_since']}")
    return YES


def _rows(answer: dict[str, Any]) -> dict[object, dict[str, Any]]:
    return {item["seq"]: item for item in answer["items"]}


def inbox_table(answer: dict[str, Any], columns: int | None = None) -> str:
    """Messages of the inbox as a table."""
    return table(
        ["SEQ", "STATE", "ATTEMPTS", "FROM", "TRUST", "WORK", "WORK STATE", "RECEIVED", "MESSAGE"],
        map(_row, answer["items"]),
        columns,
    )


def _row(item: dict[str, Any]) -> tuple[object, ...]:
    message = item["message"]
    says = body_line(message["kind"], message["envelope"].get("body") or {})
    if message.get("damaged"):
        says = "DAMAGED"
    if (why := not_delivered(message)) is not None:
        says = f"NOT DELIVERED ({why}): {says}"
    elif item["state"] == "dead" and item["last_error"]:
        says = f"DEAD ({item['last_error']}): {says}"
    came = moment(message["received_ms"])
    head = (item["seq"], State(item["state"]), item["attempts"], message["sender"], message["trust"])
    work = message["work_id"] and Id(message["work_id"])
    return (*head, work, item["work_state"] and State(item["work_state"]), came, says)


def run_follow(context: Context, values: dict[str, Any]) -> int:
    """Stream unread messages, then new ones, until interrupted. Leases nothing."""
    context.output.waiting("unread messages, then new ones as they arrive; Ctrl-C ends it")
    for event in follow(context.api, [("inbox", True)], 0, lost_note(context)):
        context.output.event(event, event_line)
    return YES


COMMANDS = {
    "inbox list": Command(
        run_list,
        description="List the messages for our agent, oldest first. Without --state: those that are not acknowledged.",
        examples=["aghctl inbox list", "aghctl inbox list --state dead -o json", "aghctl inbox list --watch"],
        arguments=[
            Argument(
                "--state",
                action="append",
                choices=("ready", "leased", "acked", "dead"),
                help="only messages in this state",
            ),
            Argument("--since", metavar="SEQ", type=whole, help="messages after this local sequence"),
            LIMIT,
            WATCH,
        ],
    ),
    "inbox follow": Command(
        run_follow,
        description=(
            "Stream the messages for our agent: first the unacknowledged ones, then each as it arrives, one JSON object\n"
            "a line with -o jsonl. It leases nothing; `inbox next` does. Ends with Ctrl-C."
        ),
        examples=[
            "aghctl inbox follow",
            "aghctl inbox follow -o jsonl | while read -r line; do aghctl inbox next --ack; done",
        ],
    ),
}
