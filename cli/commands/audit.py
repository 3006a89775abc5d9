"""`aghctl audit verify`, `head` and `export` (offline): the ledger is read from the store itself, and every hash computed
again.

A daemon may run meanwhile. It is not asked: an attacker who can change its log can also change its answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aghbus.cli.app.arguments import whole
from aghbus.cli.app.errors import NO, YES, unusable
from aghbus.cli.app.text import safe
from aghbus.cli.context import Context
from aghbus.client.errors import Unexpected
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.store.audit.reader import AuditReader


def _head(text: str) -> Any:
    from aghbus.store.engine.commit.ledger import parse_head

    return parse_head(text)


_PROGRESS_ROWS = 100_000  # rows between two notes
_STORE = Argument("--store", metavar="FILE", help="database file (default: store.db in the instance's state folder)")
_HEAD = Argument(
    "--head",
    metavar="N:HASH",
    type=_head,
    help="a head that `audit head` printed earlier, stored elsewhere: it must be in the ledger",
)
_AFTER = Argument("--after", metavar="N", type=whole, default=0, help="only commits after this number (default: all)")
_ENTRIES = Argument(
    "--entries", action="store_true", help="the entries of the ledger instead, with everything that their hashes cover"
)


def run_verify(context: Context, values: dict[str, Any]) -> int:
    """Verify every entry and every stored envelope; 1 when a check fails."""
    from aghbus.store.audit.verify import verify

    with _reading(context, values) as reader:
        total = reader.newest.n - reader.pruned.n
        report = verify(reader, values["head"], lambda done: context.output.note(f"{done} of {total} commits"))
    found = {
        "whole": report.intact,
        "commits": report.commits,
        "envelopes": report.envelopes,
        "head": report.last,
        "pruned_through": report.pruned_through,
        "found": report.found,
        "findings": report.findings,
        "lost": report.lost,
        "notes": report.notes,
    }
    context.output.answer(found, _verdict)
    for note in report.notes:
        context.output.note(f"note: {note}")
    return YES if report.intact else NO


def run_head(context: Context, values: dict[str, Any]) -> int:
    """Print the newest entry's number and hash."""
    with _reading(context, values) as reader:
        head = reader.newest
    context.output.answer({"n": head.n, "hash": head.hash.hex(), "head": str(head)}, lambda found: str(found["head"]))
    return YES


def run_export(context: Context, values: dict[str, Any]) -> int:
    """Print the events, or the entries, as JSON lines, whatever the form of output."""
    done = 0
    with _reading(context, values) as reader:
        for row in reader.export(values["after"], context.output.note, entries=values["entries"]):
            context.output.line(row)
            done += 1
            if done % _PROGRESS_ROWS == 0:
                context.output.note(f"{done} rows, commit {row['n']} of {reader.newest.n}")
    context.output.note(f"{done} rows")
    return YES


@contextmanager
def _reading(context: Context, values: dict[str, Any]) -> Iterator[AuditReader]:
    from pathlib import Path

    from aghbus.store.audit.reader import open_audit_log
    from aghbus.store.engine.sql import DatabaseError
    from aghbus.store.errors import StoreError

    named = values["store"] or context.places.store_path
    try:
        with open_audit_log(Path(named)) as reader:
            yield reader
    except StoreError as error:
        raise unusable(error.path, str(error), f"{error.hint}; --store or --name says which store", "store") from None
    except DatabaseError as error:
        raise Unexpected(f"the store cannot be read: {error}", "see `aghd check-store`", code="store") from None


def _verdict(found: dict[str, Any]) -> str:
    verdict = "whole" if found["whole"] else "NOT WHOLE"
    lines = [f"{verdict}: {found['commits']} commits, {found['envelopes']} envelopes, head {found['head']}"]
    if found["pruned_through"]:
        lines.append(f"commits through {found['pruned_through']} were pruned by retention")
    lines += [safe(sentence) for sentence in (*found["findings"], *found["lost"])]
    if found["found"] > len(found["findings"]):
        lines.append(f"and {found['found'] - len(found['findings'])} more")
    return "\n".join(lines)


COMMANDS = {
    "audit verify": Command(
        run_verify,
        description=(
            "Verify the audit log: recompute every hash, compare every stored envelope with its commit, and both ends with\n"
            "their recorded values. Finds commits and envelopes that were changed, removed, added or moved. An attacker who can\n"
            "write the store can also write a whole new log: only a head stored elsewhere (--head) reveals that\n"
            "(docs/audit.md). Exits 1 if a check fails. Needs no daemon."
        ),
        examples=["aghctl --name ops audit verify", f"aghctl audit verify --head 1207:{'3f' * 32}"],
        arguments=[_HEAD, _STORE],
    ),
    "audit head": Command(
        run_head,
        description="Print number and hash of the newest commit: store it on another machine. Needs no daemon.",
        examples=["aghctl --name ops audit head"],
        arguments=[_STORE],
    ),
    "audit export": Command(
        run_export,
        description="Print the audit log as JSON lines, oldest first. It holds no message texts. Needs no daemon.",
        examples=["aghctl audit export > audit.jsonl", "aghctl audit export --after 1207 > audit-2.jsonl"],
        arguments=[_AFTER, _ENTRIES, _STORE],
    ),
}
