"""`aghctl messages list`, `aghctl messages search` and `aghctl messages show`."""

from __future__ import annotations

from functools import partial

from aghbus.cli.app.arguments import whole
from aghbus.cli.app.completers import peers, works
from aghbus.cli.app.errors import YES
from aghbus.cli.app.message_text import message_line
from aghbus.cli.app.options import CHANNEL, LIMIT
from aghbus.cli.app.output import dumps
from aghbus.cli.app.text import fields, indented, local_times, moment, quoted, safe
from aghbus.cli.context import Context
from aghbus.cli.ids import gather, whole_message, whole_work
from aghbus.client.http import quote
from aghbus.host.command_line import Argument, Command, nonempty
from aghbus.protocol.base.annotations import Any

KINDS = ("say", "capability", "receipt", "trace")  # greet and whois are not stored
DIRECTIONS = ("in", "out", "observed")
FILTERS = ("kind", "work", "thread", "direct", "peer", "channel", "direction")
FOUND = 20
"""Messages of a search without --limit."""
AROUND = 100
"""Characters on both sides of a text that is beyond the shown part of its message."""
CHOOSING = [
    Argument("--kind", action="append", choices=KINDS, help="only of this kind"),
    Argument("--direction", action="append", choices=DIRECTIONS, help="only in this direction"),
    Argument("--work", metavar="ID", completer=works, resolve=whole_work, help="only of this work"),
    Argument("--thread", metavar="ID", help="only in this thread"),
    Argument("--direct", metavar="ID", help="only in this direct room"),
    Argument("--peer", completer=peers, help="only from or to this peer"),
    CHANNEL,
]


def run_list(context: Context, values: dict[str, Any]) -> int:
    """List one page: after --since, else the newest."""
    answer = context.api.get("/v1/messages", query(values))
    context.output.rows(answer, "messages", _list, "no such message")
    return YES


def _list(page: dict[str, Any]) -> str:
    return "\n".join(map(message_line, page["messages"]))


def query(values: dict[str, Any]) -> list[tuple[str, object]]:
    """The filters of the page."""
    start: tuple[str, object] = ("last", True) if values["since"] is None else ("since", str(values["since"]))
    return [start, *((name, values[name]) for name in ("limit", *FILTERS))]


def run_search(context: Context, values: dict[str, Any]) -> int:
    """List the newest messages with a text, oldest first. The daemon reads its log, a part for each request."""
    text = values["text"]
    wanted = [("text", text), *((name, values[name]) for name in ("since", *FILTERS))]
    answer = gather(context, "/v1/messages", wanted, "messages", values["limit"] or FOUND, values["before"])
    answer["messages"].sort(key=lambda message: message["seq"])
    context.output.rows(answer, "messages", partial(_found, text), "no message has this text")
    if answer["next_before"] is not None:
        context.output.note(f"there may be more: --before {answer['next_before']}")
    return YES


def _found(text: str, page: dict[str, Any]) -> str:
    lines = []
    for message in page["messages"]:
        line = message_line(message)
        lines.append(line)
        if text.lower() not in line.lower() and (around := _around(text, message["envelope"].get("body"))) is not None:
            lines.append(indented(quoted(around)))
    return "\n".join(lines)


def _around(text: str, value: object) -> str | None:
    """The first text in a body that has `text`, from shortly before it; None without one."""
    if isinstance(value, str):
        start = value.lower().find(text.lower())
        return None if start < 0 else value[max(0, start - AROUND) : start + len(text) + AROUND]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for each in inner if (found := _around(text, each)) is not None), None)


def run_show(context: Context, values: dict[str, Any]) -> int:
    """Show one envelope, its effect and its delivery."""
    message = context.api.get(f"/v1/messages/{quote(values['id'])}")
    context.output.answer(message, _show)
    return YES


def _show(message: dict[str, Any]) -> str:
    verdict = " ".join(str(part) for part in (message["outcome"], message["reason"]) if part)
    delivery = message["delivery"]
    if delivery and message["delivery_detail"]:
        delivery = f"{delivery}: {message['delivery_detail']}"
    head = fields(
        [
            ("message", message["id"]),
            ("sequence", message["seq"]),
            ("kind", f"{message['kind']} ({message['direction']})"),
            ("from", message["sender"]),
            ("to", message["to"] or "everybody in the channel"),
            ("in", message["thread_id"] or message["direct_id"]),
            ("channel", f"{message['workspace_id']}/{message['channel']}"),
            ("work", message["work_id"]),
            ("trust", message["trust"]),
            ("stored", moment(message["received_ms"])),
            ("sent", _second(message["envelope"].get("ts"))),
            ("expires", _second(message["envelope"].get("expires_at"))),
            ("lifecycle", verdict),
            ("delivery", local_times(safe(delivery)) if delivery else None),
            ("damaged", "the stored bytes changed: see `aghd check-store`" if message.get("damaged") else None),
        ]
    )
    envelope = "\n".join(map(safe, dumps(message["envelope"], pretty=True).split("\n")))
    return f"{head}\n\n{envelope}"


def _second(value: object) -> str | None:
    """A time of an envelope, in Unix seconds, as people read it; None without one."""
    return moment(1000 * value) if isinstance(value, int) else None


COMMANDS = {
    "messages list": Command(
        run_list,
        description="List stored envelopes in order of the local sequence: the newest, or those after --since.",
        examples=[
            "aghctl messages list --limit 20",
            "aghctl messages list --kind say --direction in --since 0 -o jsonl",
        ],
        arguments=[
            Argument("--since", metavar="SEQ", type=whole, help="those after this local sequence, not the newest"),
            LIMIT,
            *CHOOSING,
        ],
    ),
    "messages search": Command(
        run_search,
        description="List the newest messages with a text in their body, oldest first: of works, too, in both directions.",
        examples=['aghctl messages search "smoke test"', "aghctl messages search rollback --peer patch-worker -o json"],
        arguments=[
            Argument("text", type=nonempty, help="part of a text; a to z match A to Z"),
            Argument("--since", metavar="SEQ", type=whole, help="only after this local sequence"),
            Argument(
                "--before", metavar="SEQ", type=whole, help="only before this local sequence: goes on after a page"
            ),
            LIMIT,
            *CHOOSING,
        ],
    ),
    "messages show": Command(
        run_show,
        description="Show one envelope as on the wire, its effect on the work, and its state in outbox or inbox.",
        examples=["aghctl messages show MESSAGE_ID", "aghctl messages show MESSAGE_ID -o json"],
        arguments=[Argument("id", resolve=whole_message, help="id of the message, or its end: at least 4 characters")],
    ),
}
