"""`aghctl messages purge`."""

from __future__ import annotations

import time

from aghbus.cli.app.arguments import since
from aghbus.cli.app.completers import peers, works
from aghbus.cli.app.errors import YES, AnswerIsNo
from aghbus.cli.app.text import counted, safe
from aghbus.cli.context import Context
from aghbus.cli.ids import whole_work
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

_NUMBERS = ("works", "chain_runs", "bridge_log", "quarantined", "artifacts")
_WAIT = 30.0
"""Seconds beyond the usual timeout: the daemon removes for some seconds, and then writes its store anew."""


def run(context: Context, values: dict[str, Any]) -> int:
    """Purge in as many requests as it takes; raises UsageError unless one option says what, AnswerIsNo if bytes may be left."""
    chosen = {name: values[name] for name in ("peer", "work", "before") if values[name] is not None}
    if len(chosen) != 1:
        raise UsageError("one of --peer PEER, --work ID and --before TIME is required")
    body: dict[str, Any] = {
        "peer": chosen.get("peer"),
        "work_id": chosen.get("work"),
        "before_ms": chosen.get("before"),
        "dry_run": values["dry_run"] or None,
    }
    shown = time.monotonic()
    total = context.api.post("/v1/messages/purge", body, wait=_WAIT)
    while total["next_since"] is not None:
        if time.monotonic() - shown > 1:
            context.output.waiting(f"{counted(sum(total['messages'].values()), 'message')} so far …")
            shown = time.monotonic()
        page = context.api.post("/v1/messages/purge", {**body, "since": total["next_since"]}, wait=_WAIT)
        total = _sum(total, page)
    del total["next_since"]
    total = {"dry_run": values["dry_run"], **total}
    context.output.answer(total, _human)
    if total["problem"] is not None:
        raise AnswerIsNo("what was removed may still be in the store's files", f"{total['problem']}; then purge again")
    return YES


def _sum(total: dict[str, Any], page: dict[str, Any]) -> dict[str, Any]:
    """Both parts; of what is listed once, that of the first."""
    kinds = {*total["messages"], *page["messages"]}
    return {
        **page,
        **{name: total[name] + page[name] for name in _NUMBERS},
        "messages": {kind: total["messages"].get(kind, 0) + page["messages"].get(kind, 0) for kind in sorted(kinds)},
        "kept": {name: total["kept"][name] + page["kept"][name] for name in total["kept"]},
        **{name: total[name] + page[name] for name in ("kept_works", "kept_artifacts")},
    }


def _human(total: dict[str, Any]) -> str:
    verb = "would remove" if total["dry_run"] else "removed"
    messages, kept = total["messages"], total["kept"]
    kinds = ", ".join(f"{number} {safe(kind)}" for kind, number in messages.items() if number)
    parts = [counted(sum(messages.values()), "message") + (f" ({kinds})" if kinds else "")]
    nouns = {
        "works": "work",
        "chain_runs": "chain run",
        "bridge_log": "bridge log row",
        "quarantined": "refused message",
        "artifacts": "artifact",
    }
    parts += [counted(total[name], noun) for name, noun in nouns.items() if total[name]]
    lines = [f"{verb} {', '.join(parts)}"]
    if kept["works"]:
        ids = ", ".join(map(safe, total["kept_works"][:5])) + (" …" if kept["works"] > 5 else "")
        lines.append(f"kept {counted(kept['works'], 'open work')}: {ids}; end them first (`aghctl work cancel`)")
    if kept["unread"]:
        lines.append(f"kept {counted(kept['unread'], 'unread message')}: read them, or `aghctl inbox purge` first")
    if kept["undelivered"]:
        lines.append(f"kept {counted(kept['undelivered'], 'message')} that wait to be delivered, until they expire")
    if kept["chain_runs"]:
        lines.append(f"kept {counted(kept['chain_runs'], 'chain run')} in progress (`aghctl chain cancel`)")
    if kept["artifacts"]:
        uris = ", ".join(map(safe, total["kept_artifacts"][:5])) + (" …" if kept["artifacts"] > 5 else "")
        lines.append(
            f"kept {counted(kept['artifacts'], 'artifact')} of others, or that the server does not let us remove: {uris}"
        )
    if total["overwritten"]:
        lines.append("nothing of what was removed is left in the store's files")
    return "\n".join([*lines, "not reached:", *(f"  {safe(place)}" for place in total["not_reached"])])


COMMANDS = {
    "messages purge": Command(
        run,
        description=(
            "Remove stored messages with all that is kept of their text: works, runs of chains, logs of bridges, refused\n"
            "messages, and artifacts that we put. The audit log keeps its hashes. Works that have not ended, unread messages\n"
            "and messages that wait to be delivered are kept, and counted. Backups and other peers are not reached\n"
            "(docs/data-protection.md)."
        ),
        examples=[
            "aghctl messages purge --peer patch-worker --dry-run",
            "aghctl messages purge --work WORK_ID",
            "aghctl messages purge --before 30d -o json",
        ],
        arguments=[
            Argument(
                "--peer",
                metavar="PEER",
                completer=peers,
                help="from and to this peer id, or all handles of this key id",
            ),
            Argument("--work", metavar="ID", completer=works, resolve=whole_work, help="of this work"),
            Argument(
                "--before",
                metavar="TIME",
                type=since,
                help="stored before: 30d (ago), 14:30 (today) or 2026-11-23T14:30; without works that changed since",
            ),
            Argument("--dry-run", action="store_true", help="count everything, remove nothing"),
        ],
    ),
}
