"""`aghctl id route` and `aghctl id direct` (offline)."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.context import Context
from aghbus.client.errors import UsageError
from aghbus.protocol.base.annotations import Any
from aghbus.protocol.identifiers import direct_id, is_channel, is_peer, is_workspace_id, route_token
from aghbus.store.host.command_line import Argument, Command

_PEER_RULE = (
    "must be a peer id (a-z, 0-9, '.', '_', '-', first a letter or digit, at most 128) or a handle name@fingerprint"
)
_CHANNEL_RULE = "must be 1 to 64 characters of a-z, 0-9, '_' and '-', the first a letter or digit"
_WORKSPACE_RULE = "must be 1 to 256 bytes without '.', space, '*', '>' and control characters"


def run_route(context: Context, values: dict[str, Any]) -> int:
    """Print the peer's token in NATS subjects."""
    peer = _peer("PEER", values["peer"])
    found = {"peer_id": peer, "route_token": route_token(peer)}
    context.output.answer(found, lambda it: str(it["route_token"]))
    return YES


def run_direct(context: Context, values: dict[str, Any]) -> int:
    """Print the id of the room."""
    workspace, channel = values["workspace"], values["channel"]
    if not is_workspace_id(workspace):
        raise UsageError(f"--workspace: {_WORKSPACE_RULE}")
    if not is_channel(channel):
        raise UsageError(f"--channel: {_CHANNEL_RULE}")
    one, other = _peer("PEER_A", values["peer_a"]), _peer("PEER_B", values["peer_b"])
    if one == other:
        raise UsageError("PEER_B: a direct room needs two different peers")
    found = {"direct_id": direct_id(workspace, channel, one, other)}
    context.output.answer(found, lambda it: it["direct_id"])
    return YES


def _peer(where: str, text: str) -> str:
    if not is_peer(text):
        raise UsageError(f"{where}: {_PEER_RULE}")
    return text


COMMANDS = {
    "id route": Command(
        run_route,
        description="Print the token of a peer in NATS subjects: 32 hex digits (specification, section 4). Needs no daemon.",
        examples=["aghctl id route ops", "aghctl id route ops -o json"],
        arguments=[Argument("peer", help="peer id or verified handle")],
    ),
    "id direct": Command(
        run_direct,
        description="Print the id of the direct room of two peers in a channel (specification, section 4). Needs no daemon.",
        examples=["aghctl id direct --workspace ws_local --channel default ops patch-worker"],
        arguments=[
            Argument("peer_a", help="one peer"),
            Argument("peer_b", help="the other; their order does not matter"),
            Argument("--workspace", required=True, help="workspace id"),
            Argument("--channel", required=True, help="channel"),
        ],
    ),
}
