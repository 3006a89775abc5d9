"""`aghctl chain show`, `list`, `watch`, `resume` and `cancel`: runs that the daemon knows."""

from __future__ import annotations

from functools import partial

from aghbus.cli.app.errors import YES
from aghbus.cli.app.options import LIMIT, one_of, stdin_or
from aghbus.cli.chains.follow import conclude, follow, get, to_the_end
from aghbus.cli.chains.text import change_line, run_text, runs_text
from aghbus.cli.context import Context
from aghbus.client.http import quote
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Argument, Command

_RUN = Argument("run", help="id of the run")
STATES = ("running", "waiting", "completed", "failed", "canceled")


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
        found = get(context, values["run"])
    else:
        where = f"/v1/chains/runs/{quote(values['run'])}/answer"
        found = context.api.post(where, {"text": stdin_or(values["answer"])})
    if not values["no_wait"]:
        found = to_the_end(context, found)
    context.output.answer(found, run_text)
    return YES if values["no_wait"] else conclude(context, found)


def run_cancel(context: Context, values: dict[str, Any]) -> int:
    """Cancel the run."""
    answer = context.api.post(f"/v1/chains/runs/{quote(values['run'])}/cancel", {})
    context.output.answer(answer, run_text)
    return YES


COMMANDS = {
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
            "restarts of the daemon too. Exits 0 when the run completed, 1 when it failed or was canceled."
        ),
        examples=["aghctl chain watch RUN_ID", "aghctl chain watch RUN_ID -o jsonl"],
        arguments=[_RUN],
    ),
    "chain resume": Command(
        run_resume,
        description=(
            "Answer a run that waits (state waiting) and follow it to its end or its next question. Without --answer only\n"
            "follow it: a run goes on by itself after a restart of its daemon. Exits as `chain run` does."
        ),
        examples=[
            'aghctl chain resume RUN_ID --answer "The one in Bremen"',
            "aghctl chain resume RUN_ID --answer - < answer.txt",
            "aghctl chain resume RUN_ID",
        ],
        arguments=[
            _RUN,
            Argument("--answer", metavar="TEXT", help="what to answer; - reads standard input"),
            Argument("--wait", action="store_true", help="follow the run, progress on standard error (the default)"),
            Argument("--no-wait", action="store_true", help="do not follow the run"),
        ],
    ),
    "chain cancel": Command(
        run_cancel,
        description="Cancel a run: the work that it waits for is canceled, and no further node is visited.",
        examples=["aghctl chain cancel RUN_ID"],
        arguments=[_RUN],
    ),
}
