"""`aghctl messages list` and `aghctl messages show`."""

from __future__ import annotations

from aghbus.cli.app.arguments import whole
from aghbus.cli.app.completers import peers, works
from aghbus.cli.app.errors import YES
from aghbus.cli.app.message_text import message_line
from aghbus.cli.app.options import CHANNEL, LIMIT
from aghbus.cli.app.output import dumps
from aghbus.cli.app.text import fields, local_times, moment, safe
from aghbus.cli.context import Context
from aghbus.cli.ids import whole_message, whole_work
from aghbus.client.http import quote
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

KINDS = ("say", "capability", "receipt", "trace")  # greet and whois are not stored
DIRECTIONS = ("in", "out", "observed")


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
    names = ("limit", "kind", "work", "thread", "direct", "peer", "channel", "direction")
    return [start, *((name, values[name]) for name in names)]


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
            Argument("--kind", action="append", choices=KINDS, help="only of this kind"),
            Argument("--direction", action="append", choices=DIRECTIONS, help="only in this direction"),
            Argument("--work", metavar="ID", completer=works, resolve=whole_work, help="only of this work"),
            Argument("--thread", metavar="ID", help="only in this thread"),
            Argument("--direct", metavar="ID", help="only in this direct room"),
            Argument("--peer", completer=peers, help="only from or to this peer"),
            CHANNEL,
        ],
    ),
    "messages show": Command(
        run_show,
        description="Show one envelope as on the wire, its effect on the work, and its state in outbox or inbox.",
        examples=["aghctl messages show MESSAGE_ID", "aghctl messages show MESSAGE_ID -o json"],
        arguments=[Argument("id", resolve=whole_message, help="id of the message, or its end: at least 4 characters")],
    ),
}
