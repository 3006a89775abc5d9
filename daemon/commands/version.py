"""`aghd version`."""

from __future__ import annotations

from aghbus.daemon.commands import OK, OUTPUT
from aghbus.host.command_line import Command
from aghbus.host.stdio import write
from aghbus.host.version import VERSION

TYPE_CHECKING = False  # importing typing costs 4 ms
if TYPE_CHECKING:
    from typing import Any


def run(values: dict[str, Any]) -> int:
    """Print the version of the daemon, and in JSON that of the protocol."""
    if values["output"] == "json":
        import json

        from aghbus.protocol.agh.limits import PROTOCOL

        write(json.dumps({"name": "aghd", "version": VERSION, "protocol": PROTOCOL}) + "\n")
    else:
        write(f"aghd {VERSION}\n")
    return OK


COMMANDS = {
    "version": Command(
        run,
        description="Print the version of aghd.",
        examples=["aghd version", "aghd version -o json"],
        arguments=[OUTPUT],
    )
}
