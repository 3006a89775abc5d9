"""Choosing the peer that a message is for, and telling people about one that is not there."""

from __future__ import annotations

from aghbus.cli.app.completers import capabilities
from aghbus.cli.app.errors import AnswerIsNo
from aghbus.cli.app.output import Output
from aghbus.cli.app.text import ago, safe
from aghbus.client.api import Api
from aghbus.host.command_line import Argument
from aghbus.protocol.base.annotations import Any

TO_CAPABILITY = Argument(
    "--to-capability",
    metavar="ID",
    completer=capabilities,
    help="a free peer with this capability, instead of --to; a work then asks for it",
)


def with_capability(api: Api, capability: str, channel: str | None) -> str:
    """The id of a present peer that has this capability: a verified one before others, then the one seen last.

    Raises AnswerIsNo without one.
    """
    query = [("capability", capability), ("channel", channel)]
    found = [peer for peer in api.get("/v1/peers", query)["peers"] if peer["presence"] == "active"]
    if not found:
        hint = "`aghctl wait --capability` waits for one; `aghctl peers` lists the known ones"
        raise AnswerIsNo(f"no present peer has the capability {capability}", hint, "no_peer")
    best = max(found, key=lambda peer: (peer["trust"] == "verified", peer["last_seen_ms"]))
    return str(best["peer_id"])


def handles(api: Api, nickname: str) -> list[str]:
    """The handles of known peers that begin with `nickname@`."""
    peers = api.get("/v1/peers", [("all", True)])["peers"]
    return sorted({peer["peer_id"] for peer in peers if peer["peer_id"].startswith(f"{nickname}@")})


def presence_of(api: Api, peer_id: str) -> str:
    """`present`, `inactive` or `unknown`: what presence knows of a peer, as in `SendResponse`."""
    peers = api.get("/v1/peers", [("all", True)])["peers"]
    found = {peer["presence"] for peer in peers if peer["peer_id"] == peer_id}
    return "present" if found & {"active", "local"} else "inactive" if found else "unknown"


def note_absent(api: Api, output: Output, sent: dict[str, Any]) -> None:
    """Print a note if presence does not know the recipient of `sent` (`SendResponse`), or has not seen it for a while."""
    if not output.human or sent["recipient"] not in ("unknown", "inactive"):
        return
    peers = api.get("/v1/peers", [("all", True)])["peers"]
    to = sent["to"]
    if sent["recipient"] == "inactive":
        seen = max((peer["last_seen_ms"] for peer in peers if peer["peer_id"] == to), default=0)
        output.note(f"{safe(to)} was last seen {ago(seen)}: it gets this when it is back, until it expires")
        return
    from aghbus.protocol.base.spelling import near_peers

    near = near_peers(to, [peer["peer_id"] for peer in peers if peer["presence"] != "local"])
    meant = f"; did you mean {' or '.join(map(safe, near))}?" if near else "; `aghctl peers` lists the known ones"
    output.note(f"no peer called {safe(to)} is known: it gets this if it appears before it expires{meant}")
