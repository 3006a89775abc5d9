"""`aghctl work list` and `aghctl work show`."""

from __future__ import annotations

from functools import partial

from aghbus.cli.app.arguments import since, whole
from aghbus.cli.app.completers import peers
from aghbus.cli.app.errors import YES
from aghbus.cli.app.message_text import OVERVIEW_CHARACTERS, artifact, work_head
from aghbus.cli.app.options import CHANNEL, LIMIT
from aghbus.cli.app.text import Id, State, ago, compact, counted, cut, indented, moment, painted, quoted, safe, table
from aghbus.cli.commands.work_watch import watch_to_end
from aghbus.cli.context import Context
from aghbus.cli.ids import gather, work_arguments
from aghbus.cli.watch import WATCH, watch
from aghbus.client.errors import RefusedByDaemon
from aghbus.client.http import quote
from aghbus.host.command_line import Argument, Command, nonempty
from aghbus.protocol.base.annotations import Any

SYNONYMS = {"done": "completed", "open": "submitted", "running": "working", "waiting": "needs_input", "error": "failed"}
"""What other programs call a state."""
LISTED = 100
"""Works in a list without --limit."""
STATES = ("submitted", "working", "needs_input", "completed", "failed", "canceled")


def run_list(context: Context, values: dict[str, Any]) -> int:
    """List works by state, role, peer, text and time of the last change."""
    query = [(name, values[name]) for name in ("state", "role", "peer", "text", "channel")]
    query.append(("updated_since_ms", values["since"]))

    def read() -> dict[str, Any]:
        return gather(context, "/v1/works", query, "works", values["limit"] or LISTED, values["before"])

    if values["watch"]:
        watch(context, read, works_table, _rows)
    answer = read()
    context.output.rows(answer, "works", works_table, "no such work")
    if answer["next_before"] is not None:
        context.output.note(f"there are more: --before {answer['next_before']}")
    return YES


def run_show(context: Context, values: dict[str, Any]) -> int:
    """Show one work and its history."""
    query = [(name, values[name]) for name in ("channel", "before")]
    detail = context.api.get(f"/v1/works/{quote(values['work'])}", query)
    human = partial(work_text, context, _cause(context, detail))
    if values["follow"]:
        context.output.event(detail, human)
        return watch_to_end(context, detail, detail["work"]["last_seq"])
    context.output.answer(detail, human)
    return YES


def _rows(answer: dict[str, Any]) -> dict[object, dict[str, Any]]:
    return {(work["channel"], work["work_id"]): work for work in answer["works"]}


def works_table(answer: dict[str, Any], columns: int | None = None) -> str:
    """Works as a table."""
    rows = [
        (Id(work["work_id"]), State(work["state"]), _peer(work), work["trust"], ago(work["updated_ms"]), work["text"])
        for work in answer["works"]
    ]
    return table(["WORK", "STATE", "PEER", "TRUST", "CHANGED", "TEXT"], rows, columns)


def _peer(work: dict[str, Any]) -> str:
    if work["role"] == "initiator":
        return f"for {work['target']}"
    return f"from {work['initiator']}" if work["role"] == "target" else f"{work['initiator']} → {work['target']}"


def _cause(context: Context, detail: dict[str, Any]) -> str:
    """The work, else the message, that the opening names as its cause; empty without one."""
    message_id = next((step["causation_id"] for step in detail["history"][:1] if step["outcome"] == "opened"), None)
    if message_id is None or not context.output.human:
        return ""
    try:
        cause = context.api.get(f"/v1/messages/{quote(message_id)}")
    except RefusedByDaemon:  # not stored here, or not any more
        return str(message_id)
    return str(cause["work_id"] or message_id)


def work_text(context: Context, cause: str, detail: dict[str, Any]) -> str:
    """A work with its history; `cause` is what its opening names as its cause."""
    why = detail["why"] and {**detail["why"], "hint": context.pasteable(detail["why"]["hint"])}
    omitted = f"({detail['history_omitted']} earlier steps: --before {detail['next_before']})"
    tried = [f"handed over from {safe(one['peer'])}: {safe(one['why'])}" for one in detail["attempts"]]
    return "\n".join(
        [
            work_head(detail["work"], why, cause),
            *tried,
            *_artifacts(detail["history"]),
            "",
            *([omitted] if detail["history_omitted"] else []),
            *(_step(step, detail["work"]["result"]) for step in detail["history"]),
        ]
    )


def _artifacts(history: list[dict[str, Any]]) -> list[str]:
    """The artifacts of the latest step that has some, one a line under a title."""
    latest: list[Any] = next((step["artifacts"] for step in reversed(history) if step["artifacts"]), [])
    return ["artifacts", *(indented(artifact(entry)) for entry in latest)] if latest else []


def _step(step: dict[str, Any], shown: object) -> str:
    """One line of the history; without its result if it is `shown` above, that of the work."""
    change = (
        painted(step["after"])
        if step["before"] in (None, step["after"])
        else f"{safe(step['before'])} → {painted(step['after'])}"
    )
    parts = [
        moment(step["at_ms"]),
        f"#{step['seq']}",
        safe(step["actor"]),
        _event(step),
        f"[{change}]",
        f"({safe(step['reason'])})" if step["reason"] else "",
        quoted(step["message"]),
        cut(compact(step["result"]), OVERVIEW_CHARACTERS) if step["result"] not in (None, shown) else "",
        f"[{counted(len(step['artifacts']), 'artifact')}]" if step["artifacts"] else "",
    ]
    return "  ".join(part for part in parts if part)


def _event(step: dict[str, Any]) -> str:
    """`trace completed`; for conversation only the kind."""
    _, colon, what = str(step["event"]).partition(":")
    return f"{safe(step['kind'])} {safe(what)}" if colon else safe(step["kind"])


COMMANDS = {
    "work list": Command(
        run_list,
        description="List works that this daemon knows, latest change first.",
        examples=[
            "aghctl work list",
            "aghctl work list --state working --state needs_input",
            "aghctl work list --role target -o jsonl",
            'aghctl work list --peer patch-worker --text "smoke test" --since 2h',
            "aghctl work list --limit 1000 --before 48211",
            "aghctl work list --state needs_input --watch",
        ],
        arguments=[
            Argument("--state", action="append", choices=STATES, synonyms=SYNONYMS, help="only works in this state"),
            Argument("--role", choices=("initiator", "target", "observer"), help="only works with us in this role"),
            Argument("--peer", completer=peers, help="only works with this peer"),
            Argument("--text", type=nonempty, help="only works with this in the first 200 characters of their text"),
            Argument(
                "--since",
                metavar="TIME",
                type=since,
                help="only works that changed since: 2h (ago), 14:30 (today) or 2026-11-23T14:30",
            ),
            CHANNEL,
            LIMIT,
            Argument(
                "--before", metavar="SEQ", type=whole, help="works whose last message is before this local sequence"
            ),
            WATCH,
        ],
    ),
    "work show": Command(
        run_show,
        description=(
            "Show one work: its peers, its place, its state, and every receipt, trace and message that was applied to it. With\n"
            "--follow it continues and exits as `work watch` does."
        ),
        examples=["aghctl work show WORK_ID", "aghctl work show WORK_ID -o json", "aghctl work show --last --follow"],
        arguments=[
            *work_arguments(),
            CHANNEL,
            Argument("--before", metavar="SEQ", type=whole, help="the history before this local sequence"),
            Argument("-f", "--follow", action="store_true", help="then stream its events until it has ended"),
        ],
    ),
}
