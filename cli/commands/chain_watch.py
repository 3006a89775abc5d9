"""`aghctl chain watch`."""

from __future__ import annotations

from aghbus.cli.chains.follow import conclude, follow, get
from aghbus.cli.chains.text import change_line
from aghbus.cli.context import Context
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Argument, Command


def run(context: Context, values: dict[str, Any]) -> int:
    """Print every change of a step until the run has ended."""

    def tell(change: dict[str, Any]) -> None:
        context.output.event(change, change_line)

    return conclude(context, follow(context, get(context, values["run"]), tell, over_pauses=True))


COMMANDS = {
    "chain watch": Command(
        run,
        description=(
            "Stream the steps of a run, from its beginning, until it has ended; over pauses for an answer and over\n"
            "restarts of the daemon too. Exits 0 when the run completed, 1 when it failed or was canceled."
        ),
        examples=["aghctl chain watch RUN_ID", "aghctl chain watch RUN_ID -o jsonl"],
        arguments=[Argument("run", help="id of the run")],
    )
}
