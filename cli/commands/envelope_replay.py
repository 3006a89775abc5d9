"""`aghctl envelope replay` (offline)."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.app.input import FILE, NOW, clock, lines
from aghbus.cli.context import Context
from aghbus.protocol.base.annotations import Any
from aghbus.protocol.replay import Replay
from aghbus.store.host.command_line import Command
from aghbus.store.host.stdio import flush


def run(context: Context, values: dict[str, Any]) -> int:
    """Print one outcome a line."""
    from aghbus.protocol.trust.proof import verify_envelope  # cryptography, which help and completion do not need

    receiver = Replay(verify_envelope)
    for raw in lines(values["file"]):
        step = receiver.feed(raw, clock(values["now"]))
        context.output.line({"id": step.id, "outcome": step.outcome, "state": step.state, "reason": step.reason})
        flush()
    return YES


COMMANDS = {
    "envelope replay": Command(
        run,
        description=(
            "Replay envelopes, one JSON object a line, in order, as one receiver: the effect of each on its work. Routing is\n"
            'off: all of them count as addressed to that receiver. Prints {"id", "outcome", "state", "reason"} per line.\n'
            "Needs no daemon."
        ),
        examples=[
            "aghctl envelope replay captured.jsonl",
            "aghctl envelope replay - --now 1776366200 < captured.jsonl",
        ],
        arguments=[FILE, NOW],
    )
}
