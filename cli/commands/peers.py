"""`aghctl peers`."""

from __future__ import annotations

from aghbus.cli.app.completers import capabilities
from aghbus.cli.app.errors import YES
from aghbus.cli.app.options import CHANNEL
from aghbus.cli.app.text import State, ago, table
from aghbus.cli.context import Context
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any


def run(context: Context, values: dict[str, Any]) -> int:
    """List the known peers, without asking the network."""
    query = [(name, values[name]) for name in ("capability", "channel", "all")]
    answer = context.api.get("/v1/peers", query)
    context.output.rows(answer, "peers", _human, "no peer is known yet; `aghctl whois` asks the network")
    return YES


def _human(answer: dict[str, Any]) -> str:
    rows = [
        (
            peer["peer_id"],
            State(peer["presence"]),
            peer["trust"],
            peer["channel"],
            "now" if peer["presence"] == "local" else ago(peer["last_seen_ms"]),
            peer["version"],
            ", ".join(map(str, peer["card"].get("capabilities") or ())) or None,
            peer["summary"],
        )
        for peer in answer["peers"]
    ]
    return table(["PEER", "PRESENCE", "TRUST", "CHANNEL", "SEEN", "VERSION", "CAPABILITIES", "SUMMARY"], rows)


COMMANDS = {
    "peers": Command(
        run,
        description="List the known peers: those that greeted or answered recently, ourselves included.",
        examples=["aghctl peers", "aghctl peers --capability test.run -o json"],
        arguments=[
            Argument(
                "--capability", metavar="ID", completer=capabilities, help="only peers that advertise this capability"
            ),
            CHANNEL,
            Argument("--all", action="store_true", help="expired ones too"),
        ],
    )
}
