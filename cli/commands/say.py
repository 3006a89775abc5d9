"""`aghctl say`."""

from __future__ import annotations

from aghbus.cli.app.arguments import peer
from aghbus.cli.app.completers import peers
from aghbus.cli.app.errors import YES
from aghbus.cli.app.message_text import sent_line
from aghbus.cli.app.options import ARTIFACT, SENDING, one_of, sending, stdin_or
from aghbus.cli.app.recipients import TO_CAPABILITY, note_absent, with_capability
from aghbus.cli.app.text import NOT_ENCRYPTED
from aghbus.cli.app.uploads import place_of, references
from aghbus.cli.context import Context
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

NEW_THREAD = "new"
"""Value of --thread that begins a thread; thread ids begin with `thread_`."""


def run(context: Context, values: dict[str, Any]) -> int:
    """Send the text once per receiver; several receivers share one thread."""
    if values["to_capability"]:
        one_of(values, "to", "to_capability", "direct")
        values = {**values, "to": [with_capability(context.api, values["to_capability"], values["channel"])]}
    bodies = request_bodies(values)
    if values["artifact"]:
        stored = references(context.api, _place(values), values["artifact"])
        bodies = [{**body, "body": {**body["body"], "artifacts": stored}} for body in bodies]
    answers: list[dict[str, Any]] = []
    for body in bodies:
        if answers and not body["direct"]:
            body["thread_id"] = answers[0]["thread_id"]
        answers.append(context.api.post("/v1/messages", body))
    if len(answers) == 1:
        context.output.answer(answers[0], sent_line)
    else:
        context.output.rows({"sent": answers}, "sent", lambda all_: "\n".join(map(sent_line, all_["sent"])))
    for answer in answers:
        note_absent(context.api, context.output, answer)
    if values["direct"]:
        context.output.note(NOT_ENCRYPTED)
    return YES


def _place(values: dict[str, Any]) -> str:
    """The id below which the files of this message are stored: that of the thread, if it is known."""
    thread = values["thread"]
    return str(thread) if thread and thread != NEW_THREAD else place_of("say_", values["id"])


def request_bodies(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The request bodies (`SendRequest`), one per receiver. Raises UsageError when no destination is named."""
    one_of(values, "thread", "direct")
    one_of(values, "direct", "to")
    if not (values["thread"] or values["direct"] or values["to"]):
        raise UsageError(
            "name a receiver: --to PEER, --to-capability ID, --direct PEER or --thread ID",
            "--thread new addresses the whole channel",
        )
    if len(values["to"]) > 1 and values["id"]:
        raise UsageError("--id: one id cannot name the messages to several peers")
    body: dict[str, Any] = {"text": stdin_or(values["text"])}
    if values["intent"]:
        body["intent"] = values["intent"]
    common = {
        "kind": "say",
        "body": body,
        "direct": bool(values["direct"]),
        "thread_id": None if values["thread"] == NEW_THREAD else values["thread"],
        "reply_to": values["reply_to"],
        **sending(values),
    }
    receivers = [values["direct"]] if values["direct"] else values["to"] or [None]
    return [{**common, "to": receiver} for receiver in receivers]


COMMANDS = {
    "say": Command(
        run,
        description=(
            "Send conversation text: to one peer or several in a thread (--to, a new thread unless --thread), in the direct room\n"
            "with a peer (--direct), or to everybody who follows a thread (--thread alone). It opens no work."
        ),
        examples=[
            'aghctl say "hello" --to ops',
            'aghctl say "two of you, please" --to ops --to patch-worker',
            'aghctl say "who runs this?" --to-capability test.run --artifact report.xml',
            'aghctl say "between us" --direct ops',
            "git log -1 | aghctl say - --thread new --expires-in 1h",
        ],
        arguments=[
            Argument("text", help="the text; - reads standard input"),
            Argument("--to", metavar="PEER", type=peer, action="append", completer=peers, help="receiver"),
            TO_CAPABILITY,
            Argument(
                "--direct", metavar="PEER", type=peer, completer=peers, help="send it in the direct room with this peer"
            ),
            Argument("--thread", metavar="ID", help="send it in this thread; `new` begins one"),
            Argument("--intent", metavar="WORD", help="purpose of the text, one word such as request or inform"),
            Argument("--reply-to", metavar="ID", help="message that this one answers"),
            ARTIFACT,
            *SENDING,
        ],
    )
}
