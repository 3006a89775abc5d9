"""`aghctl mcp`."""

from __future__ import annotations

import sys
import threading

from aghbus.cli.app.errors import YES
from aghbus.cli.context import Context
from aghbus.cli.mcp.relay import Relay
from aghbus.client.locate import find
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Command


def run(context: Context, _values: dict[str, Any]) -> int:
    """Relay between standard input and output and the daemon."""
    lock, out = threading.Lock(), sys.stdout.buffer

    def deliver(message: bytes) -> None:
        with lock:
            out.write(message.replace(b"\n", b" ") + b"\n")
            out.flush()

    Relay(lambda: find(context.options, context.env), deliver, lambda _: None, context.timeout).run(
        iter(sys.stdin.buffer.readline, b"")
    )
    return YES


COMMANDS = {
    "mcp": Command(
        run,
        description=(
            "Serve the Model Context Protocol on standard input and output, for a host that starts it (docs/mcp.md). Every\n"
            "message goes to the daemon; while the daemon restarts, messages wait for it."
        ),
        examples=["aghctl mcp", "aghctl --name ops mcp"],
    )
}
