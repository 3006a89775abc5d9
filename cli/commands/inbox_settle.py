"""`aghctl inbox ack`, `nack`, `requeue` and `purge`."""

from __future__ import annotations

import time

from aghbus.cli.app.arguments import seconds, whole
from aghbus.cli.app.errors import YES
from aghbus.cli.app.text import counted, moment, safe
from aghbus.cli.context import Context, Run
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any


def _runner(verb: str) -> Run:
    def run(context: Context, values: dict[str, Any]) -> int:
        try:
            seq = whole(values["seq"].removeprefix("#"))
        except ValueError as error:
            raise UsageError(f"SEQ: {error}", "`aghctl inbox list` shows the sequences") from None
        item = context.api.post(f"/v1/inbox/{seq}/{verb}", request_body(values))
        context.output.answer(item, _human)
        return YES

    return run


def run_requeue(context: Context, values: dict[str, Any]) -> int:
    """Make one message ready again, or all openings that are held; raises UsageError for both and for neither."""
    if (values["seq"] is None) != values["held"]:
        raise UsageError("one of SEQ and --held is required", "`aghctl inbox list --state dead` shows the sequences")
    if not values["held"]:
        return _runner("requeue")(context, values)
    return _all_dead(context, "requeue", "no opening is held", held=True)


def run_ack(context: Context, values: dict[str, Any]) -> int:
    """Acknowledge one message, or all dead ones that are not held; raises UsageError for both and for neither."""
    if (values["seq"] is None) != values["dead"] or (values["dead"] and values.get("lease")):
        raise UsageError("one of SEQ and --dead is required", "`aghctl inbox list` shows the sequences")
    if not values["dead"]:
        return _runner("ack")(context, values)
    return _all_dead(context, "ack", "no message is dead", held=False)


def _all_dead(context: Context, verb: str, nothing: str, *, held: bool) -> int:
    """`verb` every dead message that is `held` since a restore, or every other one."""
    items: list[dict[str, Any]] = []
    since: int | None = 0
    while since is not None:
        page = context.api.get("/v1/inbox", [("state", "dead"), ("since", str(since))])
        found = [item for item in page["items"] if (item["last_error"] or "").startswith("held: ") == held]
        items += [context.api.post(f"/v1/inbox/{item['seq']}/{verb}", {}) for item in found]
        since = page["next_since"]
    context.output.rows({"items": items}, "items", lambda _: "\n".join(map(_human, items)), nothing)
    return YES


def request_body(values: dict[str, Any]) -> dict[str, Any]:
    """The request body (`InboxAckRequest` or `InboxNackRequest`; empty for requeue)."""
    return {name: values[name] for name in ("lease", "delay", "error") if name in values}


def run_purge(context: Context, values: dict[str, Any]) -> int:
    """Drop unread messages; raises UsageError for both options and for neither."""
    if (values["from"] is None) == (not values["others"]):
        raise UsageError("one of --from PEER and --others is required")
    body = {"others": True} if values["others"] else {"sender": values["from"]}
    body["dry_run"] = values["dry_run"]
    context.output.answer(context.api.post("/v1/inbox/purge", body), purge_line)
    if values["dry_run"]:
        context.output.note("nothing was changed: --dry-run")
    return YES


def purge_line(answer: dict[str, Any]) -> str:
    """What was purged (`InboxPurgeResponse`)."""
    return f"{counted(answer['messages'], 'message')} purged, {counted(answer['works'], 'work')} closed"


def _human(item: dict[str, Any]) -> str:
    later = item["state"] == "ready" and item["available_ms"] > time.time() * 1000
    again = f", again at {moment(item['available_ms'])}" if later else ""
    return f"#{item['seq']} {safe(item['message']['id'])} is {safe(item['state'])}{again}"


_SEQ_HELP = "local sequence of the message, as `inbox list` and `inbox next` show it"
_SEQ = Argument("seq", help=_SEQ_HELP)
DRY_RUN = Argument("--dry-run", action="store_true", help="change nothing: print what would change")
_LEASE = Argument("--lease", help="only if this lease is still valid")

COMMANDS = {
    "inbox ack": Command(
        run_ack,
        description="Acknowledge a handled message: it leaves the inbox. Its envelope stays in the history.",
        examples=["aghctl inbox ack 12", "aghctl inbox ack 12 --lease LEASE", "aghctl inbox ack --dead"],
        arguments=[
            Argument("seq", nargs="?", help=_SEQ_HELP),
            _LEASE,
            Argument(
                "--dead", action="store_true", help="all dead messages, but openings that are held since a restore"
            ),
        ],
    ),
    "inbox nack": Command(
        _runner("nack"),
        description="Return a leased message: it becomes ready again after a delay, or dead after too many attempts.",
        examples=['aghctl inbox nack 12 --error "tool crashed"', "aghctl inbox nack 12 --delay 5m"],
        arguments=[
            _SEQ,
            _LEASE,
            Argument(
                "--delay",
                metavar="TIME",
                type=seconds,
                help="time until it is ready again (default: grows with the attempts)",
            ),
            Argument("--error", metavar="TEXT", help="reason, to be stored with the message"),
        ],
    ),
    "inbox requeue": Command(
        run_requeue,
        description=(
            "Make a dead or acked message ready again, and reset its attempts. Refused for the opening of a work that has ended,\n"
            "as it has when the attempts at it were used up: its initiator was told, and may open another work."
        ),
        examples=["aghctl inbox list --state dead", "aghctl inbox requeue 12", "aghctl inbox requeue --held"],
        arguments=[
            Argument("seq", nargs="?", help=_SEQ_HELP),
            Argument("--held", action="store_true", help="all openings that are held since a restore"),
        ],
    ),
    "inbox purge": Command(
        run_purge,
        description=(
            "Drop the unread messages of a sender, leased ones too: they become dead, with the reason that they were purged, and\n"
            "works that they opened are rejected, or canceled if they were accepted. All its other works that were not accepted\n"
            "are rejected, too. `inbox requeue` brings a message back that opened no work."
        ),
        examples=["aghctl inbox purge --from spammer", "aghctl inbox purge --others -o json"],
        arguments=[
            Argument("--from", metavar="PEER", help="messages of this peer id, or of all handles of this key id"),
            Argument("--others", action="store_true", help="messages of all peers that are no contacts"),
            DRY_RUN,
        ],
    ),
}
