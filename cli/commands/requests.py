"""`aghctl requests`: who waits for admission."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.app.options import LIMIT
from aghbus.cli.app.text import cut, moment, safe, table
from aghbus.cli.context import Context
from aghbus.host.command_line import Command
from aghbus.protocol.base.annotations import Any

_WORDS = 60
"""Characters of the first words in a row."""


def run(context: Context, values: dict[str, Any]) -> int:
    """List the peers that wait for admission, the oldest first."""
    answer = context.api.get("/v1/requests", [("limit", values["limit"])])
    context.output.rows(answer, "requests", _human, "no peer waits for admission")
    if answer["requests"]:
        admit, refuse = context.command("trust admit PEER"), context.command("trust refuse PEER")
        context.output.note(f"admit one with `{admit}`, or refuse it with `{refuse}`")
    if answer["more"]:
        context.output.note(f"{answer['more']} more wait: --limit shows more")
    return YES


def note_others(context: Context, inbox: dict[str, Any]) -> None:
    """Print a note if messages of others are in the inbox (`InboxResponse`)."""
    if inbox["others"]:
        context.output.note(f"{inbox['others']} from others wait: {context.command('requests')}")


def _human(answer: dict[str, Any]) -> str:
    rows = [
        (
            one["peer"],
            one["trust"],
            one["openings"],
            one["messages"],
            moment(one["since_ms"]),
            one["key_id"] or "none: anybody can use this name",
            cut(safe(one["text"]), _WORDS),
        )
        for one in answer["requests"]
    ]
    return table(["PEER", "TRUST", "WORKS", "MESSAGES", "SINCE", "KEY", "FIRST WORDS"], rows)


COMMANDS = {
    "requests": Command(
        run,
        description=(
            "List the peers that were not admitted and have unread messages here, with the first words of the oldest one. Workers\n"
            "do not take their works until `aghctl trust admit` names them (docs/trust.md, Admission)."
        ),
        examples=["aghctl requests", "aghctl --name ops requests -o json"],
        arguments=[LIMIT],
    ),
}
