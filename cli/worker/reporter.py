"""Prints the worker's events: one line each, as text or as JSON lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from aghbus.cli.app.output import Output
from aghbus.cli.app.text import moment, safe

EVENTS = (
    (
        "ready",
        "the worker takes work: `capabilities` (empty: any), `command`, `concurrency`, `sandbox` (`bubblewrap` or `landlock`)",
    ),
    ("waiting", "a work is left until its peer is admitted"),
    ("acknowledged", "messages without a work are acknowledged, and the command is not run; `count` and `message`"),
    ("taken", "the message of a work is leased"),
    ("accepted", "receipt `accepted` is sent"),
    ("rejected", "receipt `rejected` is sent; `reason` (`busy` or `unsupported_profile`) and `message`"),
    ("started", "the command runs; `pid`"),
    ("heartbeat", "a `working` trace is sent; `message`"),
    ("finished", "the command has ended; `verb` (null when the work was ended by another peer) and `message`"),
    ("asked", "the work waits for an answer; `message` (the question), `asked` (works of queries to other peers)"),
    ("answered", "the answer has come, and the command runs again"),
    ("reported", "the terminal trace is sent; `verb`"),
    ("dropped", "the work had ended before it was accepted or reported"),
    ("recovered", "a job of a dead worker is recovered; `phase`, and how many `processes` of it were terminated"),
    ("unreported", "the daemon is unreachable and the worker stops; the job stays in the journal"),
    ("problem", "an error or a warning; `message`"),
    ("stopping", "the worker takes no more work"),
)
"""Every event and its meaning; docs/serve.md has this table."""


class Reporter:
    """Prints events. Calls `on_lost` once when the output is closed."""

    def __init__(self, output: Output, on_lost: Callable[[], None]) -> None:
        self._output = output
        self._on_lost = on_lost
        self.lost = False

    def emit(self, event: str, **more: Any) -> None:
        """Print one event with the fields `more`."""
        item = {"event": event, "at_ms": time.time_ns() // 1_000_000, **more}
        if self.lost:
            return
        try:
            self._output.event(item, _human)
        except BrokenPipeError:
            self.lost = True
            self._on_lost()


def _human(item: dict[str, Any]) -> str:
    details = {
        name: value for name, value in item.items() if name not in ("event", "at_ms", "work_id", "from", "message")
    }
    parts = [moment(item["at_ms"]), f"{item['event']:<9}", safe(item["work_id"]) if "work_id" in item else ""]
    parts += [f"from {safe(item['from'])}"] if "from" in item else []
    parts += [f"{name} {safe(_words(value))}" for name, value in details.items()]
    parts += [f"“{safe(item['message'])}”"] if item.get("message") else []
    return "  ".join(part for part in parts if part)


def _words(value: object) -> object:
    return (", ".join(map(str, value)) or "any") if isinstance(value, list) else value
