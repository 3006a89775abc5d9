"""`aghctl work accept|update|need-input|complete|fail|reject|cancel|say`: each sends one step of a work."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.app.options import ARTIFACT, SENDING, json_object, sending, stdin_or
from aghbus.cli.app.text import safe, shell
from aghbus.cli.app.uploads import references
from aghbus.cli.context import Context, Run
from aghbus.cli.ids import work_arguments
from aghbus.client.errors import UsageError
from aghbus.client.http import quote
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any


def request_body(values: dict[str, Any]) -> dict[str, Any]:
    """The request body (`WorkActionRequest`), from the options of the verb."""
    message = values.get("message") if values.get("text") is None else values["text"]
    return {
        "message": None if message is None else stdin_or(message),
        "result": values.get("result"),
        "artifacts": values.get("artifact") or None,
        "reason": values.get("reason"),
        **sending(values),
    }


def _runner(verb: str) -> Run:
    def run(context: Context, values: dict[str, Any]) -> int:
        if verb == "say" and (values["text"] is None) == (values["message"] is None):
            raise UsageError("give the text: either TEXT or --message TEXT")
        body = request_body(values)
        if body["artifacts"]:
            body["artifacts"] = references(context.api, values["work"], body["artifacts"])
        sent = context.api.post(f"/v1/works/{quote(values['work'])}/{verb}", body)
        context.output.answer(sent, _human)
        if verb == "accept":
            work = shell(sent["work_id"])
            update = context.command(f"work update {work} --message …")
            context.output.note(f"next: {update}, or {context.command(f'work complete {work} --result …')}")
        return YES

    return run


def _human(sent: dict[str, Any]) -> str:
    state = f" is {safe(sent['work_state'])}" if sent["work_state"] else ""
    return f"{safe(sent['work_id'])}{state} ({safe(sent['kind'])} {safe(sent['id'])} to {safe(sent['to'])}, {safe(sent['state'])})"


_MESSAGE = Argument("--message", metavar="TEXT", help="text for the other peer; - reads standard input")
_NEEDED = Argument("--message", metavar="TEXT", required=True, help="text for the other peer; - reads standard input")
_RESULT = Argument("--result", metavar="JSON", type=json_object, help="result, a JSON object; - reads standard input")
_REASONS = "reason code: busy (default), not_found, unsupported_kind, unsupported_profile, internal and others"
_REASON = Argument("--reason", metavar="CODE", help=_REASONS)


def _verb(verb: str, description: str, example: str, *options: Argument) -> Command:
    examples = [f"aghctl work {verb} WORK_ID{example}", f"aghctl work {verb} WORK_ID{example} -o json"]
    return Command(
        _runner(verb),
        description=description,
        examples=examples,
        arguments=[*work_arguments(None if verb == "cancel" else "target"), *options, *SENDING],
    )


COMMANDS = {
    "work accept": _verb(
        "accept",
        "Accept a work that a peer opened for us: receipt accepted. The inbox keeps its message until `inbox ack`.",
        "",
    ),
    "work update": _verb(
        "update",
        "Report progress, or continue after needs_input: trace working.",
        ' --message "half done"',
        _MESSAGE,
        _RESULT,
        ARTIFACT,
    ),
    "work need-input": _verb(
        "need-input",
        "Ask the initiator for something: trace needs_input. Their next message in the work makes it working again.",
        ' --message "which branch?"',
        _NEEDED,
        _RESULT,
        ARTIFACT,
    ),
    "work complete": _verb(
        "complete",
        "Finish the work: trace completed, with result and artifacts. Final.",
        """ --result '{"passed":true}' --artifact report.xml""",
        _MESSAGE,
        _RESULT,
        ARTIFACT,
    ),
    "work fail": _verb(
        "fail", "End the work as failed: trace failed. Final.", ' --message "3 tests fail"', _MESSAGE, _RESULT, ARTIFACT
    ),
    "work reject": _verb(
        "reject",
        "Reject the work: receipt rejected. Final: another attempt needs a new work.",
        " --reason busy",
        _REASON,
        _MESSAGE,
    ),
    "work cancel": _verb(
        "cancel",
        "Cancel the work: by a receipt from its initiator, by a trace from its target. Final.",
        ' --message "no longer needed"',
        _MESSAGE,
    ),
    "work say": Command(
        _runner("say"),
        description="Send text inside a work, to its other participant; an answer to needs_input makes it working again.",
        examples=['aghctl work say WORK_ID "use the main branch"', "git diff | aghctl work say WORK_ID - -o json"],
        arguments=[
            *work_arguments(),
            Argument("text", nargs="?", help="the text; - reads standard input"),
            Argument("--message", metavar="TEXT", help="the text, instead of TEXT"),
            *SENDING,
        ],
    ),
}
