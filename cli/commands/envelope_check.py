"""`aghctl envelope check` (offline)."""

from __future__ import annotations

from aghbus.cli.app.errors import NO, YES
from aghbus.cli.app.input import FILE, NOW, clock, lines
from aghbus.cli.context import Context
from aghbus.protocol.base.annotations import Any
from aghbus.protocol.replay import check
from aghbus.store.host.command_line import Command
from aghbus.store.host.stdio import flush


def run(context: Context, values: dict[str, Any]) -> int:
    """Print one verdict a line; 1 when any envelope is refused."""
    from aghbus.protocol.trust.proof import verify_envelope  # cryptography, which help and completion do not need

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


COMMANDS = {
    "envelope check": Command(
        run,
        description=(
            "Validate envelopes, one JSON object a line, each by itself: steps 1 to 6 of the receiving order, with signatures\n"
            'but without local policy. Prints {"id", "accept", "reason", "detail"} per line.\n'
            "Exits 1 if any is refused. Needs no daemon."
        ),
        examples=["aghctl envelope check captured.jsonl", "aghctl envelope check - --now 1776366200 < captured.jsonl"],
        arguments=[FILE, NOW],
    )
}
