"""Processes that a test left behind."""

import contextlib
from pathlib import Path


def processes_with(text: str) -> list[str]:
    """The command lines of the living processes that have `text` in their command line or their first environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            command, environment = ((folder / name).read_bytes() for name in ("cmdline", "environ"))
            if text.encode() in command + environment:
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found
