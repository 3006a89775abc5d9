"""The application: find the route, parse the request, call the operation, respond. No request makes it raise."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aghbus.daemon.api import parsing
from aghbus.daemon.api.http.body import Content, read_body
from aghbus.daemon.api.http.cancellation import CancelScope
from aghbus.daemon.api.http.download import Download
from aghbus.daemon.api.http.errors import HttpRefusal, error_body, incident, request_error_body, status_of
from aghbus.daemon.api.http.exchange import ClientDisconnected, Exchange
from aghbus.daemon.api.http.sse import KEEP_ALIVE, Stream
from aghbus.daemon.api.openapi import document
from aghbus.daemon.api.route import Operation, Route
from aghbus.daemon.api.router import Router
from aghbus.daemon.api.routes import ROUTES
from aghbus.protocol.api.base import ResponseModel
from aghbus.protocol.api.queries import NoParameters
from aghbus.protocol.errors import RequestError, Unavailable

BODY_SECONDS: Final = 30.0
"""Seconds: a body of a megabyte takes a millisecond on one machine; a client that needs longer counts as stuck."""


class ApiApp:
    """The routes with the operations of one daemon, shared by every listener."""

    def __init__(
        self,
        operations: Mapping[Route, Operation],
        draining: asyncio.Event,
        *,
        max_body: int,
        body_seconds: float = BODY_SECONDS,
        keep_alive: float = KEEP_ALIVE,
    ) -> None:
        """`draining` ends streams and waits when set. `max_body` in bytes, the other two in seconds."""
        self._operations = operations
        self._draining = draining
        self._max_body = max_body
        self._body_seconds = body_seconds
        self._keep_alive = keep_alive
        self._router = Router(ROUTES)
        self._encode = msgspec.json.Encoder().encode

    async def __call__(self, exchange: Exchange) -> None:
        """Serve one request."""
        try:
            await self._serve(exchange)
        except ClientDisconnected:
            pass
        except asyncio.CancelledError:
            if not self._draining.is_set():
                raise
            # cut off at the deadline of the drain, after its connection: no client is left to answer
        except HttpRefusal as refusal:
            exchange.respond(refusal.status, error_body(refusal.code, refusal.message, refusal.hint), refusal.headers)
        except RequestError as error:
            exchange.respond(status_of(error), request_error_body(error))
        except Exception as error:  # a bug in the daemon: the response has the incident's number, the log the traceback
            exchange.respond(500, incident(error, exchange.method, exchange.path))

    async def _serve(self, exchange: Exchange) -> None:
        route, segments = self._router.find(exchange.method, exchange.path)
        arguments = await self._arguments(route, segments, exchange)
        if route.operation is None:
            exchange.respond(route.status, document())
            return
        operation = self._operations[route]
        if route.transfer == "events":
            stream = Stream(
                exchange, operation(*arguments), lambda error: incident(error, exchange.method, exchange.path)
            )
            await stream.run(self._draining, self._keep_alive)
        elif route.transfer == "download":
            artifact, content = await operation(*arguments)
            await Download(exchange, artifact, content).run(exchange.path)
        else:
            if route.transfer == "upload":
                arguments.append(Content(exchange, seconds=self._body_seconds))
            response = await (self._wait(operation, arguments, exchange) if route.waits else operation(*arguments))
            unavailable = route.unavailable is not None and route.unavailable(response)
            exchange.respond(503 if unavailable else route.status, self._encode(response))

    async def _arguments(self, route: Route, segments: list[str], exchange: Exchange) -> list[Any]:
        """The arguments of the route's operation, but for the content of an upload."""
        arguments = parsing.path_arguments(route, segments) if segments else []
        if route.query is NoParameters:
            if exchange.query:
                parsing.query_string(exchange.query, NoParameters)  # refuses it
        else:
            query = parsing.query_string(exchange.query, route.query)
            since = parsing.last_event_id(exchange) if route.transfer == "events" else None
            arguments.append(query if since is None else msgspec.structs.replace(query, since=since))
        if route.request is not None:
            limit = max(self._max_body, route.max_body)
            raw = await read_body(exchange, limit=limit, seconds=self._body_seconds)
            request = parsing.request(raw, route.request)
            if route.request.__struct_fields__:
                arguments.append(request)
        return arguments

    async def _wait(self, operation: Operation, arguments: list[Any], exchange: Exchange) -> ResponseModel:
        """Call the operation; cancel it when the client disconnects or the daemon drains."""
        scope = CancelScope()
        scope.when(exchange.until_disconnected, ClientDisconnected())
        scope.when(self._draining.wait, Unavailable("the daemon is shutting down", hint="retry after restart"))
        with scope:
            response: ResponseModel = await operation(*arguments)
        return response
