"""`aghctl chain cancel`."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.chains.text import run_text
from aghbus.cli.context import Context
from aghbus.client.http import quote
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Argument, Command


def run(context: Context, values: dict[str, Any]) -> int:
    """Cancel the run."""
    answer = context.api.post(f"/v1/chains/runs/{quote(values['run'])}/cancel", {})
    context.output.answer(answer, run_text)
    return YES


COMMANDS = {
    "chain cancel": Command(
        run,
        description="Cancel a run: the work that it waits for is canceled, and no further node is visited.",
        examples=["aghctl chain cancel RUN_ID"],
        arguments=[Argument("run", help="id of the run")],
    )
}
