"""Codex's background server: it keeps a session, and its relay, after the terminal was closed.

A host ends its servers with the session, but for this one: `codex` starts `codex app-server --listen unix://`, which starts the
relay, and lives on. Each terminal is connected with the server's socket, and Linux shows the connections to everybody.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_LISTENS, _CONNECTED = "01", "03"  # column `St` of /proc/net/unix


def terminals(env: Mapping[str, str]) -> int | None:
    """How many terminals are connected with the background server that started this process; None when no such server did, or
    nothing can be known of it, as without /proc."""
    try:
        with open(f"/proc/{os.getppid()}/cmdline", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            command = file.read().split("\0")
        if "app-server" not in command or not any(word.startswith("unix://") for word in command):
            return None
        path = os.path.realpath(_socket(env))
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            ends = [words[5] for line in file if (words := line.split(maxsplit=7))[7:] == [path + "\n"]]
    except OSError:
        return None
    return ends.count(_CONNECTED) if _LISTENS in ends else None


def _socket(env: Mapping[str, str]) -> str:
    folder = env.get("CODEX_HOME") or f"{env.get('HOME', '')}/.codex"
    return f"{folder}/app-server-control/app-server-control.sock"
