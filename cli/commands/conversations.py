"""`aghctl threads` and `aghctl directs`."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.app.options import CHANNEL, LIMIT
from aghbus.cli.app.text import NOT_ENCRYPTED, ago, table
from aghbus.cli.context import Context
from aghbus.host.command_line import Command
from aghbus.protocol.base.annotations import Any


def run_threads(context: Context, values: dict[str, Any]) -> int:
    """List threads with activity."""
    answer = context.api.get("/v1/threads", [("channel", values["channel"]), ("limit", values["limit"])])
    context.output.rows(answer, "threads", _threads, "no thread yet")
    return YES


def run_directs(context: Context, values: dict[str, Any]) -> int:
    """List our direct rooms."""
    answer = context.api.get("/v1/directs", [("channel", values["channel"]), ("limit", values["limit"])])
    context.output.rows(answer, "directs", _directs, "no direct room yet")
    if answer["directs"]:
        context.output.note(NOT_ENCRYPTED)
    return YES


def _threads(answer: dict[str, Any]) -> str:
    rows = [(row["thread_id"], *_activity(row)) for row in answer["threads"]]
    return table(["THREAD", "CHANNEL", "MESSAGES", "LAST", "WHEN"], rows)


def _directs(answer: dict[str, Any]) -> str:
    rows = [(row["peer"], row["trust"], row["direct_id"], *_activity(row)) for row in answer["directs"]]
    return table(["PEER", "TRUST", "ROOM", "CHANNEL", "MESSAGES", "LAST", "WHEN"], rows)


def _activity(row: dict[str, Any]) -> tuple[object, ...]:
    return row["channel"], row["messages"], f"#{row['last_seq']}", ago(row["last_ms"])


COMMANDS = {
    "threads": Command(
        run_threads,
        description="List threads, latest activity first. `messages list --thread ID` reads one.",
        examples=["aghctl threads", "aghctl threads --limit 5 -o jsonl"],
        arguments=[CHANNEL, LIMIT],
    ),
    "directs": Command(
        run_directs,
        description=(
            "List our direct rooms, latest activity first. `messages list --direct ID` reads one. Direct rooms are not\n"
            "encrypted: the operator of the broker can read them."
        ),
        examples=["aghctl directs", "aghctl directs -o json"],
        arguments=[CHANNEL, LIMIT],
    ),
}
