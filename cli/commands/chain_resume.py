"""`aghctl chain resume`."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.app.options import one_of, stdin_or
from aghbus.cli.chains.follow import conclude, get, to_the_end
from aghbus.cli.chains.text import run_text
from aghbus.cli.context import Context
from aghbus.client.http import quote
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Argument, Command


def run(context: Context, values: dict[str, Any]) -> int:
    """Send the answer to the work that asked, then follow the run to its end or its next question."""
    one_of(values, "wait", "no_wait")
    if values["answer"] is None:
        found = get(context, values["run"])
    else:
        where = f"/v1/chains/runs/{quote(values['run'])}/answer"
        found = context.api.post(where, {"text": stdin_or(values["answer"])})
    if not values["no_wait"]:
        found = to_the_end(context, found)
    context.output.answer(found, run_text)
    return YES if values["no_wait"] else conclude(context, found)


COMMANDS = {
    "chain resume": Command(
        run,
        description=(
            "Answer a run that waits (state waiting) and follow it to its end or its next question. Without --answer only\n"
            "follow it: a run goes on by itself after a restart of its daemon. Exits as `chain run` does."
        ),
        examples=[
            'aghctl chain resume RUN_ID --answer "The one in Bremen"',
            "aghctl chain resume RUN_ID --answer - < answer.txt",
            "aghctl chain resume RUN_ID",
        ],
        arguments=[
            Argument("run", help="id of the run"),
            Argument("--answer", metavar="TEXT", help="what to answer; - reads standard input"),
            Argument(
                "--wait", action="store_true", help="follow the run, with progress on standard error (the default)"
            ),
            Argument("--no-wait", action="store_true", help="do not follow the run"),
        ],
    )
}
