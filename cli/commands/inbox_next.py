"""`aghctl inbox next`."""

from __future__ import annotations

from aghbus.cli.app.arguments import seconds
from aghbus.cli.app.completers import works
from aghbus.cli.app.errors import YES, AnswerIsNo
from aghbus.cli.app.message_text import body_line, not_delivered
from aghbus.cli.app.text import fields, moment, safe, shell, span
from aghbus.cli.context import Context
from aghbus.cli.ids import whole_work
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any


def run(context: Context, values: dict[str, Any]) -> int:
    """Lease the oldest ready message, or acknowledge it immediately; raises AnswerIsNo when there is none."""
    if values["wait"]:
        context.output.waiting(f"waiting up to {span(values['wait'])} for a message; Ctrl-C ends it")
    answer = context.api.post("/v1/inbox/next", request_body(values), wait=values["wait"] or 0.0)
    if answer["item"] is None:
        if not context.output.human:
            context.output.answer(answer, str)
        raise AnswerIsNo("the inbox has no ready message", "--wait 30s waits for a message", "empty")
    context.output.answer(answer, lambda found: _human(found["item"]))
    context.output.note(_next_steps(answer["item"], context))
    return YES


def request_body(values: dict[str, Any]) -> dict[str, Any]:
    """The request body (`InboxNextRequest`)."""
    return {**{name: values[name] for name in ("wait", "visibility", "ack", "concurrent")}, "work_id": values["work"]}


def _human(item: dict[str, Any]) -> str:
    message = item["message"]
    body = message["envelope"].get("body") or {}
    lease = f"{safe(item['lease'])} until {moment(item['lease_until_ms'])}" if item["lease"] else None
    return fields(
        [
            ("message", f"#{item['seq']} {message['id']}"),
            ("from", f"{message['sender']} ({message['trust']})"),
            ("to", None if message["direction"] == "in" else message["to"]),
            ("not delivered", not_delivered(message)),
            ("work", message["work_id"]),
            ("work state", item["work_state"]),
            ("in", message["thread_id"] or message["direct_id"]),
            ("received", moment(message["received_ms"])),
            ("says", body.get("text") if message["kind"] == "say" else None),
            ("what", None if message["kind"] == "say" else body_line(message["kind"], body)),
            ("lease", lease),
        ]
    )


def _next_steps(item: dict[str, Any], context: Context) -> str:
    message, lease = item["message"], item["lease"]
    steps = [f"inbox ack {item['seq']} --lease {shell(lease)}"] if lease else []
    if message["work_id"] and message["outcome"] == "opened" and message["direction"] == "in":
        work = shell(message["work_id"])
        steps.insert(0, f"work accept {work}")
        steps.append(f"work complete {work} --result '{{}}'")
    if item["work_state"] == "needs_input" and message["kind"] == "trace" and message["direction"] == "in":
        steps.insert(0, f"work say {shell(message['work_id'])} TEXT")
    return "\n".join(f"next: {context.command(step)}" for step in steps) or "acknowledged"


COMMANDS = {
    "inbox next": Command(
        run,
        description=(
            "Lease the oldest ready message. Acknowledge it with `inbox ack` when it is handled; otherwise it becomes ready\n"
            "again when the lease ends. --ack acknowledges it immediately. Exits 1 when there is none."
        ),
        examples=[
            "aghctl inbox next",
            "aghctl inbox next --wait 30s --visibility 10m -o json",
            "aghctl inbox next --ack",
        ],
        arguments=[
            Argument("--wait", metavar="TIME", type=seconds, help="wait this long for a message to arrive"),
            Argument("--visibility", metavar="TIME", type=seconds, help="length of the lease (default 5m)"),
            Argument("--ack", action="store_true", help="acknowledge it immediately"),
            Argument(
                "--concurrent",
                action="store_true",
                help="also while an earlier message of its work or thread is leased",
            ),
            Argument("--work", metavar="ID", completer=works, resolve=whole_work, help="only a message of this work"),
        ],
    )
}
