"""Follows a run of a chain, also across restarts of the daemon, and prints its progress."""

from __future__ import annotations

from collections.abc import Callable

from aghbus.cli.app.errors import exit_code_of_work
from aghbus.cli.app.message_text import TERMINAL
from aghbus.cli.app.text import quoted, safe, shell
from aghbus.cli.chains.text import change_line
from aghbus.cli.context import Context
from aghbus.client.api import Retry
from aghbus.client.errors import ClientError
from aghbus.client.http import quote
from aghbus.protocol.base.annotations import Any

LONGEST_WAIT = 25.0
"""Seconds that one request waits for a change; less with a shorter --timeout."""


def follow(
    context: Context, run: dict[str, Any], on_change: Callable[[dict[str, Any]], None], *, over_pauses: bool
) -> dict[str, Any]:
    """The run once it has ended, or waits for an answer unless `over_pauses`; `on_change` gets every change of a step.

    Requests are retried for `--timeout` seconds while the daemon is unreachable; then Unreachable is raised.
    """
    seen: dict[int, tuple[object, ...]] = {}
    while True:
        for step in run["history"]:
            mark = (step["work_state"], step["peer"], step["message"], step["ended_ms"])
            if seen.get(step["step"]) != mark:
                seen[step["step"]] = mark
                on_change({"run_id": run["run_id"], "state": run["state"], "step": step})
        if run["state"] in TERMINAL or (run["state"] == "waiting" and not over_pauses):
            return run
        run = _next(context, run)


def to_the_end(context: Context, run: dict[str, Any]) -> dict[str, Any]:
    """Follow a run to its end or its next question, with the progress on standard error."""
    return follow(context, run, lambda change: context.output.note(change_line(change)), over_pauses=False)


def conclude(context: Context, run: dict[str, Any]) -> int:
    """Print the result and the next command on standard error. Returns the exit code, which tells its state."""
    run_id = safe(run["run_id"])
    if run["state"] == "waiting":
        for step in asking(run):
            node = f" --node {shell(step['node'])}" if len(asking(run)) > 1 else ""
            answer = context.command(f"chain resume {shell(run['run_id'])}{node} --answer TEXT")
            context.output.note(
                f"{run_id} waits: {safe(step['node'])} asks {quoted(step['message'])}\nanswer it: {answer}"
            )
    else:
        why = f": {safe(run['error'])}" if run["error"] else ""
        context.output.note(f"{run_id} {safe(run['state'])}{why}")
    return exit_code_of_work(run["state"])


def asking(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps that wait for an answer."""
    return [step for step in run["history"] if step["work_state"] == "needs_input" and step["ended_ms"] is None]


def get(context: Context, run_id: str) -> dict[str, Any]:
    """The current state of a run."""
    return context.api.get(f"/v1/chains/runs/{quote(run_id)}")


def _next(context: Context, run: dict[str, Any]) -> dict[str, Any]:
    """The run after its next change, or unchanged after the wait."""
    wait = min(LONGEST_WAIT, context.timeout * 0.8)
    query = [("since", str(run["version"])), ("wait", f"{wait:.1f}")]
    retry = Retry(context.timeout)
    while True:
        try:
            return context.api.get(f"/v1/chains/runs/{quote(run['run_id'])}", query)
        except ClientError as error:
            if error.is_transient and not retry.has_failed:
                context.output.note(f"({safe(error.message)}; trying again for up to {retry.timeout:.0f} s)")
            retry.pause(error)
