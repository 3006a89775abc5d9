"""`aghctl chain show` and `aghctl chain list`."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.app.options import LIMIT
from aghbus.cli.chains.follow import get
from aghbus.cli.chains.text import run_text, runs_text
from aghbus.cli.context import Context
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Argument, Command

STATES = ("running", "waiting", "completed", "failed", "canceled")


def run_show(context: Context, values: dict[str, Any]) -> int:
    """Show one run."""
    context.output.answer(get(context, values["run"]), run_text)
    return YES


def run_list(context: Context, values: dict[str, Any]) -> int:
    """List runs."""
    answer = context.api.get("/v1/chains/runs", [("state", values["state"]), ("limit", values["limit"])])
    context.output.rows(answer, "runs", runs_text)
    if not answer["runs"]:
        context.output.note("no such run" if values["state"] else "no run yet")
    return YES


COMMANDS = {
    "chain show": Command(
        run_show,
        description="Show one run of a chain: its state, every step with its work, and the last response.",
        examples=["aghctl chain show RUN_ID", "aghctl chain show RUN_ID -o json"],
        arguments=[Argument("run", help="id of the run")],
    ),
    "chain list": Command(
        run_list,
        description="List runs of chains that this daemon knows, latest change first.",
        examples=["aghctl chain list", "aghctl chain list --state waiting --state running -o jsonl"],
        arguments=[Argument("--state", action="append", choices=STATES, help="only runs in this state"), LIMIT],
    ),
}
