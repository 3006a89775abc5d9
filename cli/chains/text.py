"""Text output for runs of chains. Every string is escaped here."""

from __future__ import annotations

from aghbus.cli.app.text import Id, State, ago, compact, cut, fields, moment, painted, quoted, safe, table
from aghbus.protocol.base.annotations import Any

_RESPONSE_CHARACTERS = 2_000  # of a response; `-o json` has all of it


def run_text(run: dict[str, Any]) -> str:
    """A run and its steps."""
    head = fields(
        [
            ("run", run["run_id"]),
            ("chain", run["name"]),
            ("state", State(run["state"])),
            ("error", run["error"]),
            ("question", run["question"]),
            ("node", run["node"]),
            ("steps", f"{run['steps']} of at most {run['max_steps']}"),
            ("channel", run["channel"]),
            ("begun", moment(run["created_ms"])),
            ("changed", moment(run["updated_ms"])),
            ("response", None if run["response"] is None else cut(compact(run["response"]), _RESPONSE_CHARACTERS)),
        ]
    )
    return "\n".join([head, "", *map(_step_line, run["history"])])


def runs_text(answer: dict[str, Any]) -> str:
    """Runs as a table."""
    rows = [
        (
            Id(run["run_id"]),
            State(run["state"]),
            f"{run['steps']}/{run['max_steps']}",
            run["node"],
            ago(run["updated_ms"]),
            run["name"],
            run["question"] or "",
        )
        for run in answer["runs"]
    ]
    return table(["RUN", "STATE", "STEPS", "NODE", "CHANGED", "CHAIN", "QUESTION"], rows)


def change_line(change: dict[str, Any]) -> str:
    """One change of a step."""
    return _step_line(change["step"])


def _step_line(step: dict[str, Any]) -> str:
    parts = [
        moment(step["ended_ms"] or step["started_ms"]),
        f"#{step['step']}",
        safe(step["node"]),
        f"→ {safe(step['peer'])}" if step["peer"] else "→ no peer yet" if step["work_state"] == "waiting" else "",
        f"[{painted(step['work_state'])}]",
        quoted(step["message"]),
        safe(step["work_id"]) if step["work_id"] else "",
    ]
    return "  ".join(part for part in parts if part)
