"""`aghctl bridge sentient log`, `agentos log`, `sacp log` and `sacp prompt`: one command, and a text for each format."""

from __future__ import annotations

from collections.abc import Callable

from aghbus.cli.app.errors import YES
from aghbus.cli.app.options import LIMIT
from aghbus.cli.app.text import moment, safe, table
from aghbus.cli.context import Context
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


def _entries(rows: list[dict[str, Any]]) -> str:
    """The entries as in the daily file. They contain line breaks, which are not escaped."""
    return "\n".join(safe(line) for row in rows for line in row["entry"].rstrip("\n").split("\n"))


def _messages(rows: list[dict[str, Any]]) -> str:
    return table([name.upper() for name in MESSAGE_LOG], ([row[name] for name in MESSAGE_LOG] for row in rows))


def _audit(rows: list[dict[str, Any]]) -> str:
    """One line for each response or text that passed; of a response the message as it was passed on."""
    lines = []
    for row in rows:
        passed = row["sent"]["message"] if row["sent"] else row["raw"]
        cells = (row["direction"], row["peer"], row["status"], row["stage"], row["work_id"], row["thought"], passed)
        lines.append((moment(row["at"] * 1000), *cells))
    return table(AUDIT, lines)


def _log(format: str, text: Callable[[list[dict[str, Any]]], str], description: str) -> Command:
    """The command that prints the log of a format, for people by `text`."""

    def run(context: Context, values: dict[str, Any]) -> int:
        answer = context.api.get(f"/v1/bridge/{format}/log", [("limit", values["limit"])])
        context.output.rows(answer, "rows", lambda it: text(it["rows"]), "nothing has been logged yet")
        return YES

    name = f"aghctl bridge {format} log"
    return Command(run, description=description, examples=[name, f"{name} -o json"], arguments=[LIMIT])


def run_prompt(context: Context, values: dict[str, Any]) -> int:
    """Print the instructions; in JSON as `{"prompt"}`."""
    from aghbus.protocol.formats.sacp.prompt import RESPONSE_FORMAT

    context.output.answer({"prompt": RESPONSE_FORMAT}, lambda it: str(it["prompt"]).rstrip("\n"))
    return YES


COMMANDS = {
    "bridge sentient log": _log(
        "sentient",
        _entries,
        "Print the audit entries of our own agent's messages, oldest first, in the layout of the daily file.",
    ),
    "bridge agentos log": _log(
        "agentos",
        _messages,
        "Print the message log, oldest first: every message of both directions, with the ten fields of MessageLog.",
    ),
    "bridge sacp log": _log(
        "sacp",
        _audit,
        "Print the audit table, oldest first: every response and text that passed, in both directions, with time and\n"
        "thought. -o json has the raw text as the agent wrote it, and the response before and after guardrails, too.",
    ),
    "bridge sacp prompt": Command(
        run_prompt,
        description=(
            "Print the instructions that make a language model answer in SACP: append them to its system prompt. Needs no daemon."
        ),
        examples=["aghctl bridge sacp prompt > response-format.txt", "aghctl bridge sacp prompt -o json"],
    ),
}
