"""`aghctl work retry`."""

from __future__ import annotations

from aghbus.cli.app.arguments import peer, seconds
from aghbus.cli.app.completers import peers
from aghbus.cli.app.errors import AnswerIsNo
from aghbus.cli.app.message_text import TERMINAL
from aghbus.cli.app.options import SENDING, sending
from aghbus.cli.app.text import shell
from aghbus.cli.commands.work_open import tell_opened
from aghbus.cli.commands.work_run import run_to_end
from aghbus.cli.context import Context
from aghbus.cli.ids import work_arguments
from aghbus.client.http import quote
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any


def run(context: Context, values: dict[str, Any]) -> int:
    """Open the same work again, and with --wait follow it as `work run` does."""
    detail = context.api.get(f"/v1/works/{quote(values['work'])}", [("channel", values["channel"])])
    _check(context, detail["work"])
    opening = context.api.get(f"/v1/messages/{quote(detail['work']['opening_id'])}")
    body = request_body(values, detail, opening)
    if values["wait"] is None:
        return tell_opened(context, context.api.post("/v1/works", body))
    return run_to_end(context, context.api.post("/v1/works", {**body, "reactions": "none"}), values["wait"])


def _check(context: Context, work: dict[str, Any]) -> None:
    """Raise AnswerIsNo unless the work is one of ours that has ended."""
    work_id = work["work_id"]
    if work["role"] != "initiator":
        hint = f"`{context.command('work open')}` opens one of ours"
        raise AnswerIsNo(f"{work_id} was opened by {work['initiator']}, not by this daemon", hint, "not_ours")
    if work["state"] not in TERMINAL:
        hint = f"`{context.command(f'work cancel {shell(work_id)}')}` ends it"
        raise AnswerIsNo(f"{work_id} has not ended: it is {work['state']}", hint, "not_ended")


def request_body(values: dict[str, Any], detail: dict[str, Any], opening: dict[str, Any]) -> dict[str, Any]:
    """The request body (`WorkOpenRequest`): the content of `opening` (`Message`), caused by the last message of the old work.

    Raises AnswerIsNo when the opening is damaged.
    """
    work, content = detail["work"], opening["envelope"].get("body")
    if opening["damaged"] or not isinstance(content, dict):
        raise AnswerIsNo(f"the message that opened {work['work_id']} is damaged", "see `aghd check-store`", "damaged")
    body = {
        "to": values["to"] or (None if work["capability"] else work["target"]),
        "to_capability": None if values["to"] else work["capability"],
        "channel": work["channel"],
        "direct": work["surface"] == "direct",
        "causation_id": detail["history"][-1]["id"],
        **detail["limits"],
    }
    if body["to_capability"] is None:
        body["hedge"] = False
    if opening["kind"] == "capability":
        body["capability_id"] = content["capability"]["id"]
    else:
        body |= {"text": content["text"], "intent": content.get("intent") or "", "artifacts": content.get("artifacts")}
    return {**sending(values), **body}


COMMANDS = {
    "work retry": Command(
        run,
        description=(
            "Open an ended work of ours again, as a new work with the same text and artifacts, or the same capability of our\n"
            "catalog, for the same peer or capability and with the same limits. Its opening names the end of the old work as\n"
            "its cause, which `work show` prints.\n"
            "With --wait it continues and exits as `work run` does."
        ),
        examples=[
            "aghctl work retry WORK_ID",
            "aghctl work retry --last --wait 10m",
            "aghctl work retry WORK_ID --to another-worker -o json",
        ],
        arguments=[
            *work_arguments("initiator"),
            Argument("--to", metavar="PEER", type=peer, completer=peers, help="another peer than the one before"),
            Argument("--wait", metavar="TIME", type=seconds, help="wait so long for its end, and print its result"),
            *SENDING,
        ],
    )
}
