"""`aghctl bridge sentient log`, `agentos log`, `sacp log` and `sacp prompt`."""

from __future__ import annotations

from collections.abc import Callable

from aghbus.cli.app.errors import YES
from aghbus.cli.app.options import LIMIT
from aghbus.cli.app.text import compact, moment, safe, table
from aghbus.cli.context import Context, Run
from aghbus.host.command_line import Command
from aghbus.protocol.base.annotations import Any

MESSAGE_LOG = (
    "timestamp",
    "direction",
    "type",
    "fromAgent",
    "toAgent",
    "status",
    "latencyMs",
    "evidenceCount",
    "confidenceScore",
    "messageId",
)
"""The ten fields of `MessageLog`, the long one last: a terminal cuts the last column."""
AUDIT = ("TIME", "DIRECTION", "PEER", "STATUS", "STAGE", "WORK", "THOUGHT", "MESSAGE")
"""Columns of the audit table; -o json has everything."""


def _logs(format: str, human: Callable[[dict[str, Any]], str]) -> Run:
    def run(context: Context, values: dict[str, Any]) -> int:
        answer = context.api.get(f"/v1/bridge/{format}/log", [("limit", values["limit"])])
        context.output.rows(answer, "rows", human, "nothing has been logged yet")
        return YES

    return run


def _entries(answer: dict[str, Any]) -> str:
    """The entries as in the daily file. They contain line breaks, which are not escaped."""
    return "\n".join(_entry(row).rstrip("\n") for row in answer["rows"])


def _entry(row: dict[str, Any]) -> str:
    entry = row.get("entry")
    return "\n".join(map(safe, entry.split("\n"))) if isinstance(entry, str) else compact(row)


def _table(columns: tuple[str, ...]) -> Callable[[dict[str, Any]], str]:
    def human(answer: dict[str, Any]) -> str:
        rows = [[_cell(row.get(name)) for name in columns] for row in answer["rows"]]
        return table([name.upper() for name in columns], rows)

    return human


def _audit(answer: dict[str, Any]) -> str:
    """One line for each response or text that passed; of a response the message as it was passed on."""
    rows = []
    for row in answer["rows"]:
        passed = row["sent"]["message"] if row["sent"] else row["raw"]
        cells = (row["direction"], row["peer"], row["status"], row["stage"], row["work_id"], row["thought"], passed)
        rows.append((moment(row["at"] * 1000), *cells))
    return table(AUDIT, rows)


def _cell(value: object) -> object:
    return compact(value) if isinstance(value, dict | list) else value


def run_prompt(context: Context, values: dict[str, Any]) -> int:
    """Print the instructions; in JSON as `{"prompt"}`."""
    from aghbus.protocol.formats.sacp.prompt import RESPONSE_FORMAT

    context.output.answer({"prompt": RESPONSE_FORMAT}, lambda it: str(it["prompt"]).rstrip("\n"))
    return YES


COMMANDS = {
    "bridge sentient log": Command(
        _logs("sentient", _entries),
        description="Print the audit entries of our own agent's messages, oldest first, in the layout of the daily file.",
        examples=["aghctl bridge sentient log", "aghctl bridge sentient log --limit 20 -o jsonl"],
        arguments=[LIMIT],
    ),
    "bridge agentos log": Command(
        _logs("agentos", _table(MESSAGE_LOG)),
        description="Print the message log, oldest first: every message of both directions, with the ten fields of MessageLog.",
        examples=["aghctl bridge agentos log", "aghctl bridge agentos log -o jsonl"],
        arguments=[LIMIT],
    ),
    "bridge sacp log": Command(
        _logs("sacp", _audit),
        description=(
            "Print the audit table, oldest first: every response and text that passed, in both directions, with time and\n"
            "thought. -o json has the raw text as the agent wrote it, and the response before and after guardrails, too."
        ),
        examples=["aghctl bridge sacp log", "aghctl bridge sacp log -o json"],
        arguments=[LIMIT],
    ),
    "bridge sacp prompt": Command(
        run_prompt,
        description=(
            "Print the instructions that make a language model answer in SACP: append them to its system prompt. Needs no daemon."
        ),
        examples=["aghctl bridge sacp prompt > response-format.txt", "aghctl bridge sacp prompt -o json"],
    ),
}
