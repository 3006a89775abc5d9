"""The application: find the operation, parse the request, call the handler, respond. No request makes it raise."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec

from aghbus.daemon.api import parsing
from aghbus.daemon.api.handlers import MAX_BODY, Handler
from aghbus.daemon.api.http.body import Content, read_body, whole_body
from aghbus.daemon.api.http.cancellation import CancelScope, Draining
from aghbus.daemon.api.http.download import Download
from aghbus.daemon.api.http.errors import HttpRefusal, error_body, incident, request_error_body, status_of
from aghbus.daemon.api.http.exchange import ClientDisconnected, Exchange
from aghbus.daemon.api.http.sse import EventStream
from aghbus.daemon.api.http.timeouts import TIMEOUTS, HttpTimeouts
from aghbus.daemon.api.router import Router
from aghbus.protocol.api.base import ResponseModel
from aghbus.protocol.api.operation import AnyOperation
from aghbus.protocol.api.operations import OPERATIONS
from aghbus.protocol.api.queries import NoParameters
from aghbus.protocol.base.errors import RequestError

Mounted = Callable[[Exchange, Draining], Coroutine[Any, Any, None]]
"""Serves every request of one path in place of the operations. The event is set when the daemon drains."""


class ApiApp:
    """The operations with the handlers of one daemon, shared by every listener."""

    def __init__(
        self,
        handlers: Mapping[AnyOperation, Handler],
        draining: Draining,
        *,
        max_body: int,
        timeouts: HttpTimeouts = TIMEOUTS,
        mounted: Mapping[str, Mounted] | None = None,
    ) -> None:
        """`draining` ends streams and waits when set. `max_body` in bytes. `mounted` is by path."""
        self._handlers = handlers
        self._mounted = mounted or {}
        self._draining = draining
        self._max_body = max_body
        self._timeouts = timeouts
        self._router = Router(OPERATIONS)
        self._encode = msgspec.json.Encoder().encode

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Serve one request. What only waits for a commit takes no task: the handler's future responds when it is done."""
        if exchange.path in self._mounted:
            return self._guarded(exchange, self._mounted[exchange.path](exchange, self._draining))
        try:
            operation, segments = self._router.find(exchange.method, exchange.path)
            if not exchange.body_complete or operation.transfer != "json":
                return self._guarded(exchange, self._serve(operation, segments, exchange))
            body = b""
            if operation.takes.request is not None:
                body = whole_body(exchange, limit=MAX_BODY.get(operation, self._max_body))
            answer = self._handlers[operation](*self._arguments(operation, segments, exchange, body))
            if not isinstance(answer, asyncio.Future):
                return self._guarded(exchange, self._respond(operation, exchange, answer))
            scope = None
            if operation.waits:
                scope = CancelScope(exchange, self._draining)
                scope.begin(answer)
            answer.add_done_callback(partial(self._answered, operation, exchange, scope))
        except Exception as error:
            self._fail(exchange, error)
        return None

    def _answered(
        self,
        operation: AnyOperation,
        exchange: Exchange,
        scope: CancelScope | None,
        answer: asyncio.Future[ResponseModel],
    ) -> None:
        try:
            if scope is not None and (happened := scope.end()) is not None:
                raise happened
            exchange.respond(operation.status, self._encode(answer.result()))
        except Exception as error:
            self._fail(exchange, error)

    async def _guarded(self, exchange: Exchange, serving: Awaitable[None]) -> None:
        try:
            await serving
        except asyncio.CancelledError:
            if not self._draining.is_set():
                raise
            # cut off at the deadline of the drain, after its connection: no client is left to answer
        except Exception as error:
            self._fail(exchange, error)

    async def _respond(self, operation: AnyOperation, exchange: Exchange, answer: Awaitable[Any]) -> None:
        if operation.waits:
            with CancelScope(exchange, self._draining):
                response = await answer
        else:
            response = await answer
        unready = operation.may_be_unready and not response.ready
        exchange.respond(503 if unready else operation.status, self._encode(response))

    def _fail(self, exchange: Exchange, error: Exception) -> None:
        """Respond with an error. For a bug in the daemon the response has the incident's number, the log the traceback."""
        if isinstance(error, HttpRefusal):
            exchange.respond(error.status, error_body(error.code, error.message, error.hint), error.headers)
        elif isinstance(error, RequestError):
            exchange.respond(status_of(error), request_error_body(error))
        elif not isinstance(error, ClientDisconnected):
            exchange.respond(500, incident(error, exchange.method, exchange.path))

    async def _serve(self, operation: AnyOperation, segments: list[str], exchange: Exchange) -> None:
        """Serve a request that waits: for its body, for its client to read, or for an event."""
        body = b""
        if operation.takes.request is not None:
            limit = MAX_BODY.get(operation, self._max_body)
            body = await read_body(exchange, limit=limit, seconds=self._timeouts.body)
        arguments = self._arguments(operation, segments, exchange, body)
        handler = self._handlers[operation]
        if operation.transfer == "events":
            stream = EventStream(
                exchange, handler(*arguments), lambda error: incident(error, exchange.method, exchange.path)
            )
            await stream.run(self._draining, self._timeouts.silence)
        elif operation.transfer == "download":
            artifact, content = await handler(*arguments)
            await Download(exchange, artifact, content).run(exchange.path)
        elif operation.transfer == "upload":
            await self._respond(
                operation, exchange, handler(*arguments, Content(exchange, seconds=self._timeouts.body))
            )
        else:
            await self._respond(operation, exchange, handler(*arguments))

    def _arguments(self, operation: AnyOperation, segments: list[str], exchange: Exchange, body: bytes) -> list[Any]:
        """The arguments of the handler, but for the content of an upload."""
        takes = operation.takes
        arguments = parsing.path_arguments(takes.path, segments) if segments else []
        if takes.query is NoParameters:
            if exchange.query:
                parsing.query_string(exchange.query, NoParameters)  # refuses it
        else:
            query = parsing.query_string(exchange.query, takes.query)
            since = parsing.last_event_id(exchange) if operation.transfer == "events" else None
            arguments.append(query if since is None else msgspec.structs.replace(query, since=since))
        if takes.request is not None:
            request = parsing.request(body, takes.request)
            if takes.request.__struct_fields__:
                arguments.append(request)
        return arguments
