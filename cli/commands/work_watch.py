"""`aghctl work watch`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from aghbus.cli.app.completers import works
from aghbus.cli.app.errors import NO, YES
from aghbus.cli.app.message_text import TERMINAL, event_line, reason_line
from aghbus.cli.app.options import CHANNEL
from aghbus.cli.app.text import safe
from aghbus.cli.context import Context
from aghbus.client.errors import ClientError
from aghbus.client.events import follow
from aghbus.client.http import quote
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

FIRST_REASON = 10.0
"""Seconds after which a person is told why a work does not move."""
REPEATED_REASON = 120.0
"""Seconds after which the same reason is told again."""


def run(context: Context, values: dict[str, Any]) -> int:
    """Print the history, then new events, until the work has ended; 0 when it completed, else 1."""
    where, only = f"/v1/works/{quote(values['work'])}", [("channel", values["channel"])]
    work = context.api.get(where, only)["work"]
    state = until(context, work, 0, TERMINAL, lambda event: context.output.event(event, event_line))
    context.output.note(f"{safe(work['first_id'] or work['work_id'])} {state}")
    return YES if state == "completed" else NO


def until(
    context: Context,
    work: dict[str, Any],
    since: int,
    settled: Collection[str],
    show: Callable[[dict[str, Any]], object],
) -> str:
    """Show the events of a work after `since`, at each peer that gets it, until its state is one of `settled`; that state."""
    where, only = f"/v1/works/{quote(work['work_id'])}", [("channel", work["channel"])]
    notes = ReasonNotes(context, work["work_id"], work["channel"])
    ended = work["last_seq"] if work["state"] in TERMINAL else None  # retention may have removed its last envelope
    attempt = work["first_id"] or work["work_id"]
    while True:
        for event in follow(context.api, [("work", attempt), *only], since, lost_note(context), on_idle=notes.idle):
            show(event)
            after = (event.get("work") or {}).get("after")
            since = since if event["type"] == "gap" else event["seq"]
            if after in settled and (after not in TERMINAL or work["capability"] is None):
                return str(after)
            if event["type"] == "gap" or after in TERMINAL or (ended is not None and event["seq"] >= ended):
                now = context.api.get(where, [*only, ("before", "1")])
                attempts = [*(one["work_id"] for one in now["attempts"]), now["work"]["work_id"]]
                if attempt != attempts[-1]:
                    attempt = attempts[attempts.index(attempt) + 1]
                    break
                if now["work"]["state"] in settled and (after in TERMINAL or event["seq"] >= now["work"]["last_seq"]):
                    return str(now["work"]["state"])


def lost_note(context: Context) -> Any:
    """A callback that notes that the stream was interrupted and is being resumed."""
    return lambda why: context.output.note(f"({safe(why)}; reconnecting for up to {context.timeout:.0f} s)")


class ReasonNotes:
    """Notes why a work does not move, for a person who waits for it: after a while, when the reason changes, and now and then."""

    def __init__(self, context: Context, work_id: str, channel: str) -> None:
        self._context = context
        self._where, self._only = f"/v1/works/{quote(work_id)}", [("channel", channel), ("before", "1")]
        self._code = ""
        self._due = time.monotonic() + FIRST_REASON

    def idle(self) -> None:
        """Nothing has happened."""
        now = time.monotonic()
        if not self._context.output.human or now < self._due - (REPEATED_REASON if self._code else 0):
            return
        try:
            why = self._context.api.get(self._where, self._only)["why"]
        except ClientError:  # the stream reports a daemon that is away
            return
        if why is not None and (why["code"] != self._code or now >= self._due):
            self._code, self._due = why["code"], now + REPEATED_REASON
            self._context.output.note(f"({reason_line(why)})")


COMMANDS = {
    "work watch": Command(
        run,
        description=(
            "Stream every event of a work: its whole history first, then live, without gaps or repeats, over\n"
            "restarts of the daemon too, and at every peer to which it is handed over. Ends with the work: exits 0\n"
            "when it completed, 1 when it failed or was canceled."
        ),
        examples=["aghctl work watch WORK_ID", "aghctl work watch WORK_ID -o jsonl"],
        arguments=[Argument("work", completer=works, help="id of the work"), CHANNEL],
    )
}
