"""`aghctl debug tasks` and `debug profile`: what a running daemon does."""

from __future__ import annotations

from collections import Counter

from aghbus.cli.app.arguments import seconds
from aghbus.cli.app.errors import YES
from aghbus.cli.app.text import safe, table
from aghbus.cli.context import Context
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

_SHOWN = 25  # functions


def run_tasks(context: Context, values: dict[str, Any]) -> int:
    """Print the stacks of the tasks and threads."""
    context.output.answer(context.api.get("/v1/debug/stacks"), _stacks)
    return YES


def run_profile(context: Context, values: dict[str, Any]) -> int:
    """Print a profile: a table, or with --folded a line for each stack."""
    answer = context.api.get("/v1/debug/profile", [("duration", str(values["time"]))])
    context.output.answer(answer, _folded if values["folded"] else _functions)
    return YES


def _stacks(answer: dict[str, Any]) -> str:
    lines = [f"{name}: {size} waiting" for name, size in answer["queues"].items()]
    for what in ("tasks", "threads"):
        for stack in answer[what]:
            lines += ["", f"{what[:-1]} {safe(stack['name'])}", *(f"  {safe(frame)}" for frame in stack["frames"])]
    return "\n".join(lines)


def _functions(answer: dict[str, Any]) -> str:
    """The functions with the most samples of their own: of threads that run Python code or wait in it."""
    own, whole = Counter[str](), Counter[str]()
    for stack in answer["stacks"]:
        names = [frame.partition(":")[0] + " " + frame.rpartition(" ")[2] for frame in stack["frames"][1:]]
        if names:
            own[names[-1]] += stack["samples"]
        whole.update(dict.fromkeys(names, stack["samples"]))
    rows = [
        [_percent(count, answer), _percent(whole[name], answer), safe(name)] for name, count in own.most_common(_SHOWN)
    ]
    return table(["own", "with callees", "function"], rows)


def _percent(samples: int, answer: dict[str, Any]) -> str:
    return f"{100 * samples / max(1, answer['samples']):.1f} %"


def _folded(answer: dict[str, Any]) -> str:
    return "\n".join(f"{safe(';'.join(stack['frames']))} {stack['samples']}" for stack in answer["stacks"])


COMMANDS = {
    "debug tasks": Command(
        run_tasks,
        description="Print where each task and thread of the daemon is now. SIGUSR1 writes the same to its log.",
        examples=["aghctl debug tasks", "aghctl debug tasks -o json"],
    ),
    "debug profile": Command(
        run_profile,
        description=(
            "Sample the stacks of all threads of the daemon for TIME, and print the functions that were seen most. A thread that\n"
            "waits is seen, too. It costs the daemon about a hundredth of a core meanwhile."
        ),
        examples=["aghctl debug profile 10s", "aghctl debug profile 20s --folded > aghd.folded"],
        arguments=[
            Argument("time", metavar="TIME", nargs="?", type=seconds, default=10.0, help="100ms to 20s (default 10s)"),
            Argument("--folded", action="store_true", help="a line for each stack, as flame graph tools take it"),
        ],
    ),
}
