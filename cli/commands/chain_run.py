"""`aghctl chain run`."""

from __future__ import annotations

import json

from aghbus.cli.app.errors import YES
from aghbus.cli.app.options import CHANNEL, one_of, stdin_or
from aghbus.cli.app.text import safe, shell
from aghbus.cli.chains.file import CHAIN_FILE, checked
from aghbus.cli.chains.follow import conclude, to_the_end
from aghbus.cli.chains.text import run_text
from aghbus.cli.context import Context
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Argument, Command


def run(context: Context, values: dict[str, Any]) -> int:
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


COMMANDS = {
    "chain run": Command(
        run,
        description=(
            "Run a chain of agents (docs/adapters/chains.md): each node is a work for a peer, and its answer decides which\n"
            "node comes next. The daemon carries out the run: it goes on when this command ends, and after a restart. Exits 0\n"
            "when the run completed, 1 when it failed, was canceled, or waits for an answer (`chain resume`)."
        ),
        examples=[
            'aghctl chain run research.toml --input "Find the email of the CEO of Acme Corp."',
            'aghctl chain run research.json --input-json \'{"company":"Acme Corp"}\' --run-id acme-1 -o json',
            "aghctl chain run research.toml --no-wait",
        ],
        arguments=[
            CHAIN_FILE,
            Argument("--input", metavar="TEXT", help="text that {{input}} stands for; - reads standard input"),
            Argument("--input-json", metavar="JSON", type=_json, help="as any JSON value; - reads standard input"),
            Argument("--wait", action="store_true", help="follow the run, progress on standard error (the default)"),
            Argument("--no-wait", action="store_true", help="print the run's id and return"),
            Argument("--run-id", metavar="ID", help="your own id; the same request under it again is the same run"),
            CHANNEL,
        ],
    )
}
