"""`aghctl bridge sacp prompt` (offline)."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.context import Context
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Command


def run(context: Context, values: dict[str, Any]) -> int:
    """Print the instructions; in JSON as `{"prompt"}`."""
    from aghbus.protocol.adapters.sacp.prompt import RESPONSE_FORMAT

    context.output.answer({"prompt": RESPONSE_FORMAT}, lambda it: str(it["prompt"]).rstrip("\n"))
    return YES


COMMANDS = {
    "bridge sacp prompt": Command(
        run,
        description=(
            "Print the instructions that make a language model answer in SACP: append them to its system prompt. Needs no daemon."
        ),
        examples=["aghctl bridge sacp prompt > response-format.txt", "aghctl bridge sacp prompt -o json"],
    )
}
