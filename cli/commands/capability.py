"""`aghctl capability list`, `show` and `send`."""

from __future__ import annotations

from aghbus.cli.app.arguments import peer
from aghbus.cli.app.completers import own_capabilities, peers, works
from aghbus.cli.app.errors import YES
from aghbus.cli.app.message_text import sent_line
from aghbus.cli.app.options import SENDING, THREAD, one_of, sending
from aghbus.cli.app.output import dumps
from aghbus.cli.app.text import safe, table
from aghbus.cli.context import Context
from aghbus.cli.ids import whole_work
from aghbus.client.errors import RefusedByDaemon
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any


def run_list(context: Context, values: dict[str, Any]) -> int:
    """List the catalog, and the error of its last reload."""
    answer = context.api.get("/v1/capabilities")
    none = "this daemon announces no capability; see aghd run --capability ID, or a catalog"
    context.output.rows(answer, "capabilities", _list, none)
    for problem in answer["problems"]:
        context.output.note(f"problem: {safe(problem)}")
    return YES


def run_show(context: Context, values: dict[str, Any]) -> int:
    """Show one record as it goes over the wire."""
    context.output.answer(record(context, values["id"]), _show)
    return YES


def record(context: Context, capability_id: str) -> dict[str, Any]:
    """The entry with that id in our own catalog. Raises RefusedByDaemon (`not_found`) when there is none."""
    for entry in context.api.get("/v1/capabilities")["capabilities"]:
        if entry["id"] == capability_id:
            found: dict[str, Any] = entry
            return found
    raise RefusedByDaemon(
        f"our catalog has no capability {capability_id}", "`aghctl capability list` shows it", "not_found"
    )


def _list(answer: dict[str, Any]) -> str:
    rows = [
        (entry["id"], entry["digest"] or "(claim without a record)", entry["summary"])
        for entry in answer["capabilities"]
    ]
    return table(["CAPABILITY", "DIGEST", "SUMMARY"], rows)


def _show(entry: dict[str, Any]) -> str:
    if entry["document"] is None:
        return f"{safe(entry['id'])}: a claim without a record"
    return "\n".join(map(safe, dumps(entry["document"], pretty=True).split("\n")))


def run_send(context: Context, values: dict[str, Any]) -> int:
    """Send one record; raises RefusedByDaemon when there is only a claim to it."""
    one_of(values, "thread", "direct")
    one_of(values, "direct", "to")
    entry = record(context, values["capability"])
    if entry["document"] is None:
        raise RefusedByDaemon(
            f"{values['capability']} is a claim without a record", "write its record into the catalog", "not_found"
        )
    context.output.answer(context.api.post("/v1/messages", request_body(values, entry["document"])), sent_line)
    if values["work"] is None and (others := _others(context, values)):
        context.output.note(
            f"{', '.join(map(safe, others))}: of another implementation, which may drop a capability without a work; "
            "name one with --work"
        )
    return YES


def _others(context: Context, values: dict[str, Any]) -> list[str]:
    """The receivers whose daemons are not of this project, at most three."""
    receiver = values["direct"] or values["to"]
    peers = context.api.get("/v1/peers")["peers"]
    found = {peer["peer_id"]: None for peer in peers if peer["aghbus"] is False and receiver in (None, peer["peer_id"])}
    return list(found)[:3]


def request_body(values: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The request body (`SendRequest`)."""
    return {
        "kind": "capability",
        "body": {"capability": document},
        "to": values["direct"] or values["to"],
        "direct": bool(values["direct"]),
        "thread_id": values["thread"],
        "work_id": values["work"],
        **sending(values),
    }


COMMANDS = {
    "capability list": Command(
        run_list,
        description="List the capabilities of our own daemon. For those of other peers: `aghctl whois --catalog`.",
        examples=["aghctl capability list", "aghctl capability list -o json"],
    ),
    "capability show": Command(
        run_show,
        description="Show one record of our own catalog, digest included.",
        examples=["aghctl capability show test.run", "aghctl capability show test.run -o json"],
        arguments=[Argument("id", completer=own_capabilities, help="id of the capability")],
    ),
    "capability send": Command(
        run_send,
        description=(
            "Send a record of our catalog with its digest: to one peer, into the direct room with it, or to everybody in the\n"
            "channel. It opens no work, unless --work names a new one, as `aghctl work open --capability ID` does. Peers of other\n"
            "implementations may take a capability only with a work."
        ),
        examples=[
            "aghctl capability send test.run --to ops",
            "aghctl capability send test.run --to ops --work work_7",
            "aghctl capability send test.run",
        ],
        arguments=[
            Argument("capability", completer=own_capabilities, help="id in our own catalog"),
            Argument("--to", metavar="PEER", type=peer, completer=peers, help="receiver (default: everybody)"),
            Argument(
                "--direct", metavar="PEER", type=peer, completer=peers, help="send it in the direct room with this peer"
            ),
            Argument(
                "--work",
                metavar="ID",
                completer=works,
                resolve=whole_work,
                help="a work of this receiver; with a new id it opens one",
            ),
            THREAD,
            *SENDING,
        ],
    ),
}
