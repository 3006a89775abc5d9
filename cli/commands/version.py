"""`aghctl version`."""

from __future__ import annotations

from aghbus.cli.app.arguments import Command
from aghbus.cli.app.errors import YES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aghbus.cli.context import Context


def run(context: Context, values: dict[str, Any]) -> int:
    """Print this tool's version; the daemon's is in `aghctl status`."""
    from importlib.metadata import version

    from aghbus.protocol.limits import PROTOCOL

    found = {"name": "aghctl", "version": version("aghbus"), "protocol": PROTOCOL}
    context.output.answer(found, lambda it: f"{it['name']} {it['version']} ({it['protocol']})")
    return YES


COMMANDS = {
    "version": Command(
        run,
        description="Print the version of aghctl and of the protocol it speaks. Asks no daemon.",
        examples=["aghctl version", "aghctl version -o json"],
    )
}
