"""`POST /mcp`: one message of a client a request; the response is JSON, or a stream when something is sent before it.

Specification 2026-07-28 and 2025-11-25, Streamable HTTP. There is no stream to GET and no session to DELETE: a legacy session is
all in its id.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from aghbus.daemon.api.http.body import read_body
from aghbus.daemon.api.http.cancellation import CancelScope, Draining
from aghbus.daemon.api.http.errors import HttpRefusal, error_body, incident
from aghbus.daemon.api.http.exchange import EVENT_STREAM, ClientDisconnected, Exchange, Header, common_headers
from aghbus.daemon.mcp.call import PendingAnswers, ToolCall
from aghbus.daemon.mcp.client import SESSION_HEADER, McpCaller, client_of, session_id
from aghbus.daemon.mcp.rpc import INTERNAL_ERROR, Object, Request, RpcError, error_message, parse, result_message
from aghbus.daemon.mcp.server import McpServer
from aghbus.protocol.base.errors import Unavailable

_KEEP_ALIVE: Final = 15.0  # seconds between two comments on a stream


class McpEndpoint:
    """An application for one path of the API."""

    def __init__(self, server: McpServer, *, max_body: int, body_seconds: float = 30.0) -> None:
        """`max_body` in bytes."""
        self._server = server
        self._max_body = max_body
        self._body_seconds = body_seconds
        self._answers = PendingAnswers()

    async def __call__(self, exchange: Exchange, draining: Draining) -> None:
        """Serve one request. `draining` ends streams and waits when set."""
        try:
            await self._post(exchange, draining)
        except HttpRefusal as error:
            exchange.respond(error.status, error_body(error.code, error.message, error.hint), error.headers)
        except RpcError as error:
            exchange.respond(error.status, error_message(None, error))
        except ClientDisconnected:
            pass

    async def _post(self, exchange: Exchange, draining: Draining) -> None:
        if exchange.method != "POST":
            raise HttpRefusal(405, "method_not_allowed", f"{exchange.method}: use POST", "", [(b"allow", b"POST")])
        body = await read_body(exchange, limit=self._max_body, seconds=self._body_seconds)
        message = parse(body)
        if message.method is msgspec.UNSET:
            assert message.id is not None and message.id is not msgspec.UNSET
            self._answers.resolve(message.id, None if message.result is msgspec.UNSET else message.result)
            exchange.respond(202, b"")
        elif message.id is msgspec.UNSET or message.id is None:
            exchange.respond(202, b"")  # nothing that a client notifies us of changes anything
        else:
            await self._request(exchange, draining, Request(message.id, message.method, message.params))

    async def _request(self, exchange: Exchange, draining: Draining, request: Request) -> None:
        reply = _Reply(exchange)
        try:
            client = client_of(exchange.headers, request)
            call = ToolCall(request, client, reply.send, self._answers)
            result = await self._wait(exchange, draining, call)
            await reply.finish(result_message(request.id, result), _session(client, request))
        except RpcError as error:
            await reply.finish(error_message(request.id, error), status=error.status)
        except Unavailable as error:
            await reply.finish(error_message(request.id, RpcError(INTERNAL_ERROR, error.message)), status=503)
        except ClientDisconnected:
            raise
        except Exception as error:
            told = msgspec.json.decode(incident(error, exchange.method, exchange.path))
            await reply.finish(error_message(request.id, RpcError(INTERNAL_ERROR, told["message"])), status=500)
        finally:
            reply.close()

    async def _wait(self, exchange: Exchange, draining: Draining, call: ToolCall) -> Object:
        """The result; the call ends early when its client disconnects, which cancels it, or the daemon drains."""
        with CancelScope(exchange, draining):
            return await self._server.handle(call)


def _session(client: McpCaller, request: Request) -> list[Header]:
    if client.modern or request.method != "initialize":
        return []
    return [(SESSION_HEADER, session_id(request.params.get("capabilities")).encode())]


class _Reply:
    """The response to one request: JSON, or a stream of events that ends with it."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._alive: asyncio.Task[None] | None = None

    async def send(self, message: bytes) -> None:
        """Send a message before the response."""
        if self._alive is None:
            self._exchange.start(200, (*common_headers(EVENT_STREAM), (b"x-accel-buffering", b"no")))
            self._alive = asyncio.ensure_future(self._keep_alive())
        await self._exchange.write(_event(message))

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_ALIVE)
            await self._exchange.write(b": still working\n\n")

    async def finish(self, message: bytes, headers: Sequence[Header] = (), status: int = 200) -> None:
        """Send the response itself."""
        if self._alive is None:
            self._exchange.respond(status, message, headers)
        else:
            await self._exchange.write(_event(message))
            self._exchange.end()

    def close(self) -> None:
        """Stop what keeps the stream alive."""
        if self._alive is not None:
            self._alive.cancel()


def _event(message: bytes) -> bytes:
    return b"event: message\ndata: %b\n\n" % message
