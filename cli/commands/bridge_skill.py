"""`aghctl bridge humaninloop skill`."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.context import Context
from aghbus.host.command_line import Command
from aghbus.protocol.base.annotations import Any


def run(context: Context, values: dict[str, Any]) -> int:
    """Print the folder with SKILL.md and the examples, which is installed beside the code; in JSON as `{"path"}`."""
    from pathlib import Path

    skill = Path(__file__).parent.parent / "skills" / "agent-protocol"
    context.output.answer({"path": str(skill)}, lambda it: str(it["path"]))
    return YES


COMMANDS = {
    "bridge humaninloop skill": Command(
        run,
        description=(
            "Print the path of the skill folder `agent-protocol` (ADR-007): SKILL.md describes both envelopes to an agent, and\n"
            "examples/ has one of each. Copy it to where your agents look for skills. Needs no daemon."
        ),
        examples=[
            "aghctl bridge humaninloop skill",
            "aghctl bridge humaninloop skill -o json",
        ],
    ),
}
