"""`aghctl peers`."""

from __future__ import annotations

from aghbus.cli.app.completers import capabilities
from aghbus.cli.app.errors import YES
from aghbus.cli.app.options import CHANNEL
from aghbus.cli.app.text import State, ago, table
from aghbus.cli.context import Context
from aghbus.cli.watch import WATCH, watch
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

NOBODY = "no peer is known yet; `aghctl whois` asks the network"


def run(context: Context, values: dict[str, Any]) -> int:
    """List the known peers, without asking the network."""
    query = [(name, values[name]) for name in ("capability", "channel", "all")]
    if values["watch"]:
        watch(
            context,
            lambda: context.api.get("/v1/peers", query),
            peers_table,
            _rows,
            volatile=("last_seen_ms",),
        )
    context.output.rows(context.api.get("/v1/peers", query), "peers", peers_table, NOBODY)
    return YES


def _rows(answer: dict[str, Any]) -> dict[object, dict[str, Any]]:
    return {(peer["channel"], peer["peer_id"]): peer for peer in answer["peers"]}


def peers_table(answer: dict[str, Any], columns: int | None = None) -> str:
    """Peers as a table."""
    rows = [
        (
            peer["peer_id"],
            State(peer["presence"]),
            peer["trust"],
            peer["channel"],
            "now" if peer["presence"] == "local" else ago(peer["last_seen_ms"]),
            peer["version"],
            None if peer["takes"] is None else f"{peer['open_works']}/{peer['takes']}",
            ", ".join(map(str, peer["card"].get("capabilities") or ())) or None,
            peer["summary"],
        )
        for peer in answer["peers"]
    ]
    return table(
        ["PEER", "PRESENCE", "TRUST", "CHANNEL", "SEEN", "VERSION", "LOAD", "CAPABILITIES", "SUMMARY"], rows, columns
    )


COMMANDS = {
    "peers": Command(
        run,
        description=(
            "List the known peers: those that greeted or answered recently, ourselves included. LOAD is how many works are\n"
            "open at a peer, and how many its workers take at a time, as it says."
        ),
        examples=["aghctl peers", "aghctl peers --capability test.run -o json", "aghctl peers --watch"],
        arguments=[
            Argument(
                "--capability", metavar="ID", completer=capabilities, help="only peers that advertise this capability"
            ),
            CHANNEL,
            Argument("--all", action="store_true", help="expired ones too"),
            WATCH,
        ],
    )
}
