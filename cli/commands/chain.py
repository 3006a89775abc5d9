"""`aghctl chain …`: runs of chains, and the check of a chain file."""

from __future__ import annotations

import json
from functools import partial

from aghbus.cli.app.errors import NO, YES
from aghbus.cli.app.findings import finding_line
from aghbus.cli.app.options import CHANNEL, LIMIT, one_of, stdin_or
from aghbus.cli.app.text import safe, shell
from aghbus.cli.chains.file import CHAIN_FILE, checked, read
from aghbus.cli.chains.follow import conclude, follow, get, to_the_end
from aghbus.cli.chains.text import change_line, run_text, runs_text
from aghbus.cli.context import Context
from aghbus.cli.ids import whole_run
from aghbus.client.errors import UsageError
from aghbus.client.http import quote
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

_WAIT = Argument("--wait", action="store_true", help="follow the run, progress on standard error (the default)")
_RUN = Argument("run", resolve=whole_run, help="id of the run, or its end: at least 4 characters")
STATES = ("running", "waiting", "completed", "failed", "canceled")


def run_start(context: Context, values: dict[str, Any]) -> int:
    """Begin the run and, unless --no-wait is given, follow it to its end or its first question."""
    body = request_body(values)
    started = context.api.post("/v1/chains/runs", body)
    if values["no_wait"]:
        context.output.answer(started, lambda answer: safe(answer["run_id"]))
        context.output.note(f"follow it: {context.command('chain watch ' + shell(started['run_id']))}")
        return YES
    context.output.note(f"run {safe(started['run_id'])}")
    ended = to_the_end(context, started)
    context.output.answer(ended, run_text)
    return conclude(context, ended)


def request_body(values: dict[str, Any]) -> dict[str, Any]:
    """The request body (`ChainStartRequest`). Raises UsageError, or AnswerIsNo for a chain file with errors."""
    one_of(values, "wait", "no_wait")
    one_of(values, "input", "input_json")
    given = values["input_json"]
    return {
        "chain": checked(values["file"]),
        "input": given[0] if given is not None else None if values["input"] is None else stdin_or(values["input"]),
        "run_id": values["run_id"],
        "channel": values["channel"],
    }


def _json(text: str) -> tuple[Any]:
    """Any JSON value, in a tuple, since `null` is one."""
    try:
        return (json.loads(stdin_or(text)),)
    except (ValueError, RecursionError):
        raise ValueError('must be a JSON value such as {"topic":"tides"}') from None


def run_show(context: Context, values: dict[str, Any]) -> int:
    """Show one run."""
    context.output.answer(get(context, values["run"]), run_text)
    return YES


def run_list(context: Context, values: dict[str, Any]) -> int:
    """List runs."""
    answer = context.api.get("/v1/chains/runs", [("state", values["state"]), ("limit", values["limit"])])
    context.output.rows(answer, "runs", runs_text, "no such run" if values["state"] else "no run yet")
    return YES


def run_watch(context: Context, values: dict[str, Any]) -> int:
    """Print every change of a step until the run has ended."""
    tell = partial(context.output.event, human=change_line)
    return conclude(context, follow(context, get(context, values["run"]), tell, over_pauses=True))


def run_resume(context: Context, values: dict[str, Any]) -> int:
    """Send the answer to the work that asked, then follow the run to its end or its next question."""
    one_of(values, "wait", "no_wait")
    if values["answer"] is None:
        if values["node"] is not None:
            raise UsageError("--node needs --answer")
        found = get(context, values["run"])
    else:
        where = f"/v1/chains/runs/{quote(values['run'])}/answer"
        found = context.api.post(where, {"text": stdin_or(values["answer"]), "node": values["node"]})
    if not values["no_wait"]:
        found = to_the_end(context, found)
    context.output.answer(found, run_text)
    return YES if values["no_wait"] else conclude(context, found)


def run_cancel(context: Context, values: dict[str, Any]) -> int:
    """Cancel the run."""
    answer = context.api.post(f"/v1/chains/runs/{quote(values['run'])}/cancel", {})
    context.output.answer(answer, run_text)
    return YES


def run_check(context: Context, values: dict[str, Any]) -> int:
    """Print every error of a chain file; 1 when there is any."""
    from msgspec.structs import asdict  # slow to load

    document, faults = read(values["file"])
    findings = [asdict(fault) for fault in faults]
    context.output.answer({"ok": not findings, "findings": findings}, lambda answer: _check_text(document, answer))
    return NO if findings else YES


def _check_text(document: Any, answer: dict[str, Any]) -> str:
    if answer["ok"]:
        return f"{safe(document['name'])}: {len(document['nodes'])} nodes, {len(document.get('edges', ()))} edges, ok"
    return "\n".join(map(finding_line, answer["findings"]))


COMMANDS = {
    "chain run": Command(
        run_start,
        description=(
            "Run a chain of agents (docs/adapters/chains.md): each node is a work for a peer, and its answer decides which\n"
            "node comes next. The daemon performs the run: it continues when this command ends, and after a restart. Exits 0\n"
            "when the run completed, 1 when it failed, 6 when it waits for an answer (`chain resume`), 7 when it was canceled."
        ),
        examples=[
            'aghctl chain run research.toml --input "Find the email of the CEO of Acme Corp."',
            'aghctl chain run research.json --input-json \'{"company":"Acme Corp"}\' --run-id acme-1 -o json',
            "aghctl chain run research.toml --no-wait",
        ],
        arguments=[
            CHAIN_FILE,
            Argument("--input", metavar="TEXT", help="value of {{input}}; - reads standard input"),
            Argument("--input-json", metavar="JSON", type=_json, help="as any JSON value; - reads standard input"),
            _WAIT,
            Argument("--no-wait", action="store_true", help="print the run's id and return"),
            Argument("--run-id", metavar="ID", help="your own id; the same request under it again is the same run"),
            CHANNEL,
        ],
    ),
    "chain show": Command(
        run_show,
        description="Show one run of a chain: its state, every step with its work, and the last response.",
        examples=["aghctl chain show RUN_ID", "aghctl chain show RUN_ID -o json"],
        arguments=[_RUN],
    ),
    "chain list": Command(
        run_list,
        description="List runs of chains that this daemon knows, latest change first.",
        examples=["aghctl chain list", "aghctl chain list --state waiting --state running -o jsonl"],
        arguments=[Argument("--state", action="append", choices=STATES, help="only runs in this state"), LIMIT],
    ),
    "chain watch": Command(
        run_watch,
        description=(
            "Stream the steps of a run, from its beginning, until it has ended; over pauses for an answer and over\n"
            "restarts of the daemon too. Exits 0 when the run completed, 1 when it failed, 7 when it was canceled."
        ),
        examples=["aghctl chain watch RUN_ID", "aghctl chain watch RUN_ID -o jsonl"],
        arguments=[_RUN],
    ),
    "chain resume": Command(
        run_resume,
        description=(
            "Answer a run that waits (state waiting) and follow it to its end or its next question. The question is in the\n"
            "inbox, too, until it is answered or its time is up (answer_timeout of the node). Without --answer only\n"
            "follow it: a run continues automatically after a restart of its daemon. Exits as `chain run` does."
        ),
        examples=[
            'aghctl chain resume RUN_ID --answer "The one in Bremen"',
            "aghctl chain resume RUN_ID --node review --answer - < answer.txt",
            "aghctl chain resume RUN_ID",
        ],
        arguments=[
            _RUN,
            Argument("--answer", metavar="TEXT", help="what to answer; - reads standard input"),
            Argument("--node", metavar="NODE", help="the node that asks, when several do"),
            _WAIT,
            Argument("--no-wait", action="store_true", help="do not follow the run"),
        ],
    ),
    "chain cancel": Command(
        run_cancel,
        description="Cancel a run: the work that it waits for is canceled, and no further node is visited.",
        examples=["aghctl chain cancel RUN_ID"],
        arguments=[_RUN],
    ),
    "chain check": Command(
        run_check,
        description=(
            "Check a chain file: nodes, edges, conditions and templates, every error with its place (a JSON Pointer).\n"
            "Exits 1 if there is any. Needs no daemon."
        ),
        examples=["aghctl chain check research.toml", "aghctl chain check - -o json < research.json"],
        arguments=[CHAIN_FILE],
    ),
}
