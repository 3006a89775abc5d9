"""`aghctl artifact list`."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.app.options import LIMIT
from aghbus.cli.app.text import size, table
from aghbus.cli.context import Context
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Argument, Command


def run(context: Context, values: dict[str, Any]) -> int:
    """List the artifacts in the object store."""
    answer = context.api.get("/v1/artifacts", [("work", values["work_id"]), ("limit", values["limit"])])
    context.output.rows(answer, "artifacts", _human)
    if not answer["artifacts"]:
        context.output.note("no artifact")
    elif answer["more"]:
        context.output.note("there are more: raise --limit, or name a work")
    return YES


def _human(answer: dict[str, Any]) -> str:
    rows = [(row["uri"], size(row["size"]), row["put_by"], row["digest"]) for row in answer["artifacts"]]
    return table(["URI", "SIZE", "PUT BY", "DIGEST"], rows) if rows else ""


COMMANDS = {
    "artifact list": Command(
        run,
        description="List the artifacts of one work, or of all works, by URI. PUT BY is the claim of the storing daemon.",
        examples=["aghctl artifact list work_0199a3", "aghctl artifact list -o jsonl"],
        arguments=[Argument("work_id", nargs="?", help="only those of this work"), LIMIT],
    )
}
