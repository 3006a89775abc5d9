"""`aghctl work open`."""

from __future__ import annotations

from aghbus.cli.app.arguments import peer, seconds
from aghbus.cli.app.completers import own_capabilities, peers
from aghbus.cli.app.errors import YES
from aghbus.cli.app.message_text import sent_line
from aghbus.cli.app.options import ARTIFACT, SENDING, THREAD, LocalFile, one_of, sending, stdin_or
from aghbus.cli.app.recipients import TO_CAPABILITY, note_absent
from aghbus.cli.app.text import safe, shell
from aghbus.cli.app.uploads import place_of, references
from aghbus.cli.context import Context
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any


def run(context: Context, values: dict[str, Any]) -> int:
    """Open the work; print its id on standard output, and a next step on standard error."""
    return tell_opened(context, open_work(context, values))


def tell_opened(context: Context, sent: dict[str, Any]) -> int:
    """Print the id of the work that was opened (`OpenedWork`), and a next step on standard error."""
    context.output.answer(sent, lambda answer: safe(answer["work_id"]))
    follow = context.command(f"work watch {shell(sent['work_id'])}")
    context.output.note(f"{sent_line(sent)}\nfollow it: {follow}")
    note_absent(context.api, context.output, sent)
    return YES


def open_work(context: Context, values: dict[str, Any]) -> dict[str, Any]:
    """Choose the target, upload files, and open the work; the answer (`SendResponse`)."""
    body = request_body(values)
    if any(isinstance(entry, LocalFile) for entry in values["artifact"] or ()):
        body["work_id"] = values["work_id"] or place_of("work_", values["id"])
        body["artifacts"] = references(context.api, body["work_id"], values["artifact"])
    return context.api.post("/v1/works", body)


def request_body(values: dict[str, Any]) -> dict[str, Any]:
    """The request body (`WorkOpenRequest`). Raises UsageError without a text or a capability."""
    one_of(values, "thread", "direct")
    one_of(values, "text", "capability")
    one_of(values, "to", "to_capability")
    one_of(values, "to_capability", "intent")
    if not (values["to"] or values["to_capability"]):
        raise UsageError("name the peer: --to PEER or --to-capability ID")
    if values["to_capability"] and values["capability"] not in (None, values["to_capability"]):
        raise UsageError("--to-capability and --capability name different capabilities: a work asks for one")
    if values["text"] is None and not values["capability"]:
        raise UsageError("describe the work: --text TEXT or --capability ID")
    body: dict[str, Any] = {
        "to": values["to"],
        "to_capability": values["to_capability"],
        "hedge": values["hedge"],
        "text": None if values["text"] is None else stdin_or(values["text"]),
        "artifacts": values["artifact"] or None,
        "capability_id": values["capability"],
        "thread_id": values["thread"],
        "direct": values["direct"],
        "work_id": values["work_id"],
        "accept_within": values["accept_within"],
        "progress_within": values["progress_within"],
        "reactions": values["reactions"],
        **sending(values),
    }
    if values["intent"]:
        body["intent"] = values["intent"]
    return body


OPENING = (
    Argument("--to", metavar="PEER", type=peer, completer=peers, help="peer that is asked to do the work"),
    TO_CAPABILITY,
    Argument(
        "--hedge",
        action="store_true",
        help="with --to-capability: go on to another peer, too, when the one that accepted it is gone; both may run",
    ),
    Argument("--text", help="what to do; - reads standard input"),
    Argument(
        "--capability",
        metavar="ID",
        completer=own_capabilities,
        help="ask for this capability by its record in our catalog, instead of a text",
    ),
    THREAD,
    Argument("--direct", action="store_true", help="in the direct room with that peer"),
    Argument(
        "--intent", metavar="WORD", help="purpose of the text, or the capability that it asks for (default request)"
    ),
    ARTIFACT,
    Argument("--work-id", metavar="ID", help="your own id for the work: work_ and letters, digits, _ or -"),
    Argument(
        "--accept-within",
        metavar="TIME",
        type=seconds,
        help="cancel it if not accepted by then, or hand it over (0: never)",
    ),
    Argument(
        "--progress-within",
        metavar="TIME",
        type=seconds,
        help="cancel it after so long with no trace (0: never)",
    ),
)
"""Options of the commands that open a work."""

COMMANDS = {
    "work open": Command(
        run,
        description=(
            "Open a work for a peer and print its id. The work gets its own thread unless --thread or --direct is\n"
            "given. Returns when the daemon has stored the work and will send it; `work watch` follows it."
        ),
        examples=[
            'aghctl work open --to patch-worker --text "Run the migration smoke test"',
            'aghctl work open --to patch-worker --direct --text "Quick question" --expires-in 10m -o json',
            "aghctl work open --to patch-worker --capability test.run --accept-within 5m",
            'aghctl work open --to-capability test.run --text "Check this" --artifact patch.diff',
        ],
        arguments=[
            *OPENING,
            Argument(
                "--reactions",
                choices=("all", "questions", "none"),
                help="what of it reaches our inbox: questions and the end, questions, or nothing (default: as configured)",
            ),
            *SENDING,
        ],
    )
}
