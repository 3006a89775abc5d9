"""`aghctl id route` and `aghctl id direct` (offline)."""

from __future__ import annotations

from aghbus.cli.app.arguments import channel, peer, workspace
from aghbus.cli.app.errors import YES
from aghbus.cli.context import Context
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.agh.identifiers import direct_id, route_token
from aghbus.protocol.base.annotations import Any


def run_route(context: Context, values: dict[str, Any]) -> int:
    """Print the peer's token in NATS subjects."""
    found = {"peer_id": values["peer"], "route_token": route_token(values["peer"])}
    context.output.answer(found, lambda it: str(it["route_token"]))
    return YES


def run_direct(context: Context, values: dict[str, Any]) -> int:
    """Print the id of the room."""
    one, other = values["peer_a"], values["peer_b"]
    if one == other:
        raise UsageError("PEER_B: a direct room needs two different peers")
    found = {"direct_id": direct_id(values["workspace"], values["channel"], one, other)}
    context.output.answer(found, lambda it: it["direct_id"])
    return YES


COMMANDS = {
    "id route": Command(
        run_route,
        description="Print the token of a peer in NATS subjects: 32 hex digits (specification, section 4). Needs no daemon.",
        examples=["aghctl id route ops", "aghctl id route ops -o json"],
        arguments=[Argument("peer", type=peer, help="peer id or verified handle")],
    ),
    "id direct": Command(
        run_direct,
        description="Print the id of the direct room of two peers in a channel (specification, section 4). Needs no daemon.",
        examples=["aghctl id direct --workspace ws_local --channel default ops patch-worker"],
        arguments=[
            Argument("peer_a", type=peer, help="one peer"),
            Argument("peer_b", type=peer, help="the other; their order does not matter"),
            Argument("--workspace", type=workspace, required=True, help="workspace id"),
            Argument("--channel", type=channel, required=True, help="channel"),
        ],
    ),
}
