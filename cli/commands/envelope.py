"""`aghctl envelope check` and `envelope replay` (offline)."""

from __future__ import annotations

from aghbus.cli.app.errors import NO, YES
from aghbus.cli.app.input import FILE, NOW, clock, lines
from aghbus.cli.context import Context
from aghbus.host.command_line import Command
from aghbus.host.stdio import flush
from aghbus.protocol.agh.replay import Replay, check
from aghbus.protocol.base.annotations import Any


def run_check(context: Context, values: dict[str, Any]) -> int:
    """Print one verdict a line; 1 when any envelope is refused."""
    from aghbus.protocol.agh.trust.proof import verify_envelope  # cryptography, which help and completion do not need

    code = YES
    for raw in lines(values["file"]):
        verdict = check(raw, clock(values["now"]), verify_envelope)
        if not verdict.accept:
            code = NO
        context.output.line(
            {"id": verdict.id, "accept": verdict.accept, "reason": verdict.reason, "detail": verdict.detail}
        )
        flush()
    return code


def run_replay(context: Context, values: dict[str, Any]) -> int:
    """Print one outcome a line."""
    from aghbus.protocol.agh.trust.proof import verify_envelope  # cryptography, which help and completion do not need

    receiver = Replay(verify_envelope)
    for raw in lines(values["file"]):
        step = receiver.feed(raw, clock(values["now"]))
        context.output.line({"id": step.id, "outcome": step.outcome, "state": step.state, "reason": step.reason})
        flush()
    return YES


COMMANDS = {
    "envelope check": Command(
        run_check,
        description=(
            "Validate envelopes, one JSON object a line, each by itself: steps 1 to 6 of the receiving order, with signatures\n"
            'but without local policy. Prints {"id", "accept", "reason", "detail"} per line.\n'
            "Exits 1 if any is refused. Needs no daemon."
        ),
        examples=["aghctl envelope check captured.jsonl", "aghctl envelope check - --now 1776366200 < captured.jsonl"],
        arguments=[FILE, NOW],
    ),
    "envelope replay": Command(
        run_replay,
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
    ),
}
