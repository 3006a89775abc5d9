"""`aghctl work watch`."""

from __future__ import annotations

from aghbus.cli.app.errors import NO, YES
from aghbus.cli.app.message_text import TERMINAL, event_line
from aghbus.cli.app.options import CHANNEL
from aghbus.cli.app.text import painted, safe
from aghbus.cli.context import Context
from aghbus.cli.ids import work_arguments
from aghbus.client.events import follow
from aghbus.client.http import quote
from aghbus.host.command_line import Command
from aghbus.protocol.base.annotations import Any


def run(context: Context, values: dict[str, Any]) -> int:
    """Print the history, then new events, until the work has ended; 0 when it completed, else 1."""
    where, only = f"/v1/works/{quote(values['work'])}", [("channel", values["channel"])]
    work = context.api.get(where, only)["work"]
    query = [("work", work["work_id"]), ("channel", work["channel"])]
    state = _until_end(context, query, work)
    context.output.note(f"{safe(work['work_id'])} {painted(state)}")
    return YES if state == "completed" else NO


def _until_end(context: Context, query: list[tuple[str, object]], work: dict[str, Any]) -> str:
    """The terminal state. Retention may have removed the last envelope of a work that had already ended."""
    ended = str(work["state"]) if work["state"] in TERMINAL else ""
    for event in follow(context.api, query, 0, lost_note(context)):
        context.output.event(event, event_line)
        after = (event.get("work") or {}).get("after")
        if after in TERMINAL:
            return str(after)
        if ended and event["seq"] >= work["last_seq"]:
            return ended
    raise AssertionError("a stream ends by an exception only")


def lost_note(context: Context) -> Any:
    """A callback that notes that the stream was interrupted and is being resumed."""
    return lambda why: context.output.note(f"({safe(why)}; reconnecting for up to {context.timeout:.0f} s)")


COMMANDS = {
    "work watch": Command(
        run,
        description=(
            "Stream every event of a work: its whole history first, then live, without gaps or repeats, over\n"
            "restarts of the daemon too. Ends with the work: exits 0 when it completed, 1 when it failed or was canceled."
        ),
        examples=["aghctl work watch WORK_ID", "aghctl work watch WORK_ID -o jsonl"],
        arguments=[*work_arguments(), CHANNEL],
    )
}
