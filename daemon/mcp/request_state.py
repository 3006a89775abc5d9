"""`requestState`: what a client gives back together with its answers (specification 2026-07-28, Multi Round-Trip Requests).

The client may have changed it. So it has a MAC, which also covers the call that it was given for: with the state of another call,
or other arguments, it is refused. The key is that of the process: after a restart the client has to call anew.
"""

import hmac
import secrets

import msgspec

from aghbus.daemon.mcp.rpc import INVALID_PARAMS, Request, RpcError


class RequestStates:
    """Seals states for clients, and opens what they give back."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def seal(self, request: Request, state: str) -> str:
        """`state` for the client, with the MAC of it and of `request`."""
        return f"{self._mac(request, state)}.{state}"

    def open(self, request: Request) -> str:
        """The state that the request has; empty without one. Raises RpcError if it is not ours, or that of another call."""
        if "requestState" not in request.params:
            return ""
        given = request.params["requestState"]
        mac, _, state = given.partition(".") if isinstance(given, str) else ("", "", "")
        if not hmac.compare_digest(mac.encode(errors="replace"), self._mac(request, state).encode()):
            why = "is not the one of this call, or the daemon was restarted since: `work` lists what was opened"
            raise RpcError(INVALID_PARAMS, f"Invalid params: requestState: {why}", status=200)
        return state

    def _mac(self, request: Request, state: str) -> str:
        call = [request.method, request.params.get("name"), request.params.get("arguments"), state]
        return hmac.new(self._key, msgspec.json.encode(call, order="sorted"), "sha256").hexdigest()
