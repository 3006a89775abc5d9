"""`aghctl version`."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.context import Context
from aghbus.host.command_line import Command
from aghbus.protocol.base.annotations import Any


def run(context: Context, values: dict[str, Any]) -> int:
    """Print this tool's version; the daemon's is in `aghctl status`."""
    from aghbus.host.version import VERSION
    from aghbus.protocol.agh.limits import PROTOCOL

    found = {"name": "aghctl", "version": VERSION, "protocol": PROTOCOL}
    context.output.answer(found, lambda it: f"{it['name']} {it['version']} ({it['protocol']})")
    return YES


COMMANDS = {
    "version": Command(
        run,
        description="Print the version of aghctl and of the protocol. Needs no daemon.",
        examples=["aghctl version", "aghctl version -o json"],
    )
}
