"""`aghctl work watch`."""

from __future__ import annotations

import time

from aghbus.cli.app.errors import exit_code_of_work
from aghbus.cli.app.message_text import TERMINAL, event_line, reason_line
from aghbus.cli.app.options import CHANNEL
from aghbus.cli.app.text import painted, safe
from aghbus.cli.context import Context
from aghbus.cli.ids import work_arguments
from aghbus.client.errors import ClientError
from aghbus.client.events import follow
from aghbus.client.http import quote
from aghbus.host.command_line import Command
from aghbus.protocol.base.annotations import Any

FIRST_REASON = 10.0
"""Seconds after which a person is told why a work does not move."""
REPEATED_REASON = 120.0
"""Seconds after which the same reason is told again."""
_REJECTED = "receipt:rejected"
"""The event of the lifecycle that rejects a work, which has failed then."""


def run(context: Context, values: dict[str, Any]) -> int:
    """Print the history, then new events, until the work has ended; the exit code tells how."""
    where, only = f"/v1/works/{quote(values['work'])}", [("channel", values["channel"])]
    return watch_to_end(context, context.api.get(where, only), 0)


def watch_to_end(context: Context, detail: dict[str, Any], since: int) -> int:
    """Print the events after `since` of the work in `detail` (`WorkResponse`) until it has ended; the exit code tells how."""
    work = detail["work"]
    state, rejected = _until_end(context, detail, since)
    context.output.note(f"{safe(work['first_id'] or work['work_id'])} {painted(state)}")
    return exit_code_of_work(state, rejected=rejected)


def was_rejected(history: list[dict[str, Any]]) -> bool:
    """Whether the last change of a history (`HistoryEntry`) rejected the work: after it was handed over, that is the opening."""
    changes = [step["event"] for step in history if step["after"] != step["before"]]
    return changes[-1:] == [_REJECTED]


def _until_end(context: Context, detail: dict[str, Any], since: int) -> tuple[str, bool]:
    """The terminal state, and whether it is a rejection. Retention may have removed the last envelope of an ended work."""
    work, rejected = detail["work"], was_rejected(detail["history"])
    where, only = f"/v1/works/{quote(work['work_id'])}", [("channel", work["channel"])]
    ended = str(work["state"]) if work["state"] in TERMINAL else ""
    if ended and since >= work["last_seq"]:
        return ended, rejected
    notes = ReasonNotes(context, work["work_id"], work["channel"])
    attempt = work["first_id"] or work["work_id"]
    while True:
        query = [("work", attempt), *only]
        for event in follow(context.api, query, since, lost_note(context), on_idle=notes.idle):
            context.output.event(event, event_line)
            since = since if event["type"] == "gap" else event["seq"]
            change = event.get("work") or {}
            is_end = change.get("after") in TERMINAL
            if work["capability"] is not None and (is_end or event["type"] == "gap"):
                now = context.api.get(where, [*only, ("before", "1")])
                attempts = [*(one["work_id"] for one in now["attempts"]), now["work"]["work_id"]]
                if attempt != attempts[-1]:  # it was handed over
                    attempt = attempts[attempts.index(attempt) + 1]
                    break
            if is_end:
                return str(change["after"]), change["event"] == _REJECTED
            if ended and event["seq"] >= work["last_seq"]:
                return ended, rejected


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
            "when it completed, 1 when it failed, 7 when it was canceled or rejected."
        ),
        examples=["aghctl work watch WORK_ID", "aghctl work watch WORK_ID -o jsonl"],
        arguments=[*work_arguments(), CHANNEL],
    )
}
