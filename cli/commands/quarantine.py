"""`aghctl quarantine`."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.app.options import LIMIT
from aghbus.cli.app.text import moment, size, table
from aghbus.cli.context import Context
from aghbus.host.command_line import Command
from aghbus.protocol.base.annotations import Any


def run(context: Context, values: dict[str, Any]) -> int:
    """List refused envelopes."""
    answer = context.api.get("/v1/quarantine", [("limit", values["limit"])])
    context.output.rows(answer, "quarantined", _human, "no envelope was refused")
    return YES


def _human(answer: dict[str, Any]) -> str:
    rows = [
        (
            moment(row["received_ms"]),
            row["reason"],
            row["sender"] or None,
            row["message_id"] or None,
            size(row["size"]),
            row["detail"],
        )
        for row in answer["quarantined"]
    ]
    return table(["RECEIVED", "REASON", "FROM", "MESSAGE", "SIZE", "DETAIL"], rows)


COMMANDS = {
    "quarantine": Command(
        run,
        description="List envelopes that were refused, latest first, each with its reason. -o json shows their bytes as text.",
        examples=["aghctl quarantine", "aghctl quarantine --limit 5 -o json"],
        arguments=[LIMIT],
    )
}
