"""One call of a client while it is served: what it may say to its client meanwhile, and how it asks the client's user."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aghbus.daemon.mcp.client import PREFIX, McpCaller
from aghbus.daemon.mcp.rpc import INVALID_PARAMS, Id, Object, Request, RpcError, outgoing

_ELICIT_SECONDS: Final = 600.0  # for a person to answer


class InputRequired(Exception):
    """The call cannot go on before the client has answered; it calls again with the answers (MRTR)."""

    def __init__(self, requests: dict[str, Object], state: str | None) -> None:
        super().__init__("input required")
        self.requests = requests
        self.state = state


class PendingAnswers:
    """Requests of ours that legacy clients answer with a message of their own. Their ids cannot be guessed."""

    def __init__(self) -> None:
        self._waiting: dict[Id, asyncio.Future[Any]] = {}

    def expect(self) -> tuple[str, "asyncio.Future[Any]"]:
        """The id of a new request, and its answer: the `result`, or None for an error."""
        request_id = f"aghbus-{secrets.token_hex(16)}"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        future.add_done_callback(lambda _: self._waiting.pop(request_id, None))
        return request_id, future

    def resolve(self, request_id: Id, result: Any) -> None:
        """Hand an answer over; one that nobody waits for is dropped."""
        future = self._waiting.get(request_id)
        if future is not None and not future.done():
            future.set_result(result)


class ToolCall:
    """One request of a client. `send` writes a message to it before the response."""

    def __init__(
        self, request: Request, client: McpCaller, send: Callable[[bytes], Awaitable[None]], answers: PendingAnswers
    ) -> None:
        self.request = request
        self.client = client
        self.state = ""
        """What `ask` gave the client with its request; empty at the first call."""
        self._send = send
        self._answers = answers

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification that belongs to this request."""
        await self._send(outgoing(method, params))

    async def notify_subscriber(self, method: str, params: Object) -> None:
        """Send a notification of the subscription that this request is."""
        await self.notify(method, {**params, "_meta": {PREFIX + "subscriptionId": self.request.id}})

    async def ask(self, key: str, method: str, params: Object, *, state: str | None = None) -> Any:
        """The result of one request to the client; None when it refused.

        A modern client gets the request as the result of its call, and calls again with the answer under `key`, and with `state`:
        InputRequired is raised at the first call. A legacy client answers while this call waits.
        """
        if self.client.modern:
            answers = self.request.params.get("inputResponses")
            answer = answers.get(key) if isinstance(answers, dict) else None
            if isinstance(answer, dict):
                return answer
            raise InputRequired({key: {"method": method, "params": params}}, state)
        request_id, pending = self._answers.expect()
        try:
            await self._send(outgoing(method, params, request_id))
            async with asyncio.timeout(_ELICIT_SECONDS):
                return await pending
        except TimeoutError:
            return None
        finally:
            pending.cancel()


def required_member(params: Object, name: str, kind: type) -> Any:
    """A member of the parameters. Raises RpcError."""
    value = params.get(name)
    if not isinstance(value, kind):
        raise RpcError(INVALID_PARAMS, f"Invalid params: {name}: is missing or of another type", status=200)
    return value
