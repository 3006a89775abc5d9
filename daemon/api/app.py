"""The ASGI application: find the route, parse the request, call the operation, send the response. It never raises."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aghbus.daemon.api import parsing
from aghbus.daemon.api.http.asgi import CLOSE, ClientGone, Receive, Scope, Send, reply, until_gone
from aghbus.daemon.api.http.cancellation import Interruption
from aghbus.daemon.api.http.download import Download
from aghbus.daemon.api.http.errors import HttpRefusal, error_body, incident, request_error_body, status_of
from aghbus.daemon.api.http.sse import KEEP_ALIVE, Stream
from aghbus.daemon.api.openapi import document
from aghbus.daemon.api.route import Operation, Route
from aghbus.daemon.api.router import Router
from aghbus.daemon.api.routes import ROUTES
from aghbus.protocol.api.artifacts import Artifact
from aghbus.protocol.api.base import ResponseModel
from aghbus.protocol.api.queries import NoParameters
from aghbus.protocol.errors import RequestError, Unavailable
from aghbus.protocol.text import escape

BODY_SECONDS: Final = 30.0
"""Seconds, ours: a body of a megabyte takes a millisecond on one machine; a client that needs longer is stuck."""


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI 3)."""
        method = scope["method"]
        where = escape(scope["raw_path"].decode("latin-1"))  # still percent-encoded
        try:
            await self._serve(method, where, scope, receive, send)
        except ClientGone:
            pass
        except asyncio.CancelledError:
            if not self._draining.is_set():
                raise
            # cut off at the deadline of the drain, after its connection: no client is left to answer
        except HttpRefusal as refusal:
            body = error_body(refusal.code, refusal.message, refusal.hint)
            await reply(send, refusal.status, body, refusal.headers)
        except RequestError as error:
            await reply(send, status_of(error), request_error_body(error))
        except Exception as error:  # a defect of the daemon: the client gets the incident's number, the log the rest
            await reply(send, 500, incident(error, method, where))

    async def _serve(self, method: str, where: str, scope: Scope, receive: Receive, send: Send) -> None:
        route, segments = self._router.find(method, where)
        arguments = await self._arguments(route, segments, scope, receive)
        if route.operation is None:
            await reply(send, route.status, document())
            return
        operation = self._operations[route]
        if route.transfer == "events":
            stream = Stream(send, operation(*arguments), lambda error: incident(error, method, where))
            await stream.run(receive, self._draining, self._keep_alive)
        elif route.transfer == "upload":
            artifact = await self._upload(operation, arguments, scope, receive)
            await reply(send, route.status, self._encode(artifact))
        elif route.transfer == "download":
            artifact, content = await operation(*arguments)
            await Download(send, artifact, content).run(where)
        else:
            response = await (self._wait(operation, arguments, receive) if route.waits else operation(*arguments))
            unavailable = route.unavailable is not None and route.unavailable(response)
            extra = (CLOSE,) if self._draining.is_set() else ()
            await reply(send, 503 if unavailable else route.status, self._encode(response), extra)

    async def _arguments(self, route: Route, segments: list[str], scope: Scope, receive: Receive) -> list[Any]:
        """The arguments of the route's operation, but for the content of an upload."""
        arguments = parsing.path_arguments(route, segments) if segments else []
        query = parsing.query_string(scope["query_string"], route.query)
        if route.query is not NoParameters:
            since = parsing.last_event_id(scope) if route.transfer == "events" else None
            arguments.append(query if since is None else msgspec.structs.replace(query, since=since))
        if route.request is not None:
            limit = max(self._max_body, route.max_body)
            raw = await parsing.body(scope, receive, limit=limit, seconds=self._body_seconds)
            request = parsing.request(raw, route.request)
            if route.request.__struct_fields__:
                arguments.append(request)
        return arguments

    async def _upload(self, operation: Operation, arguments: list[Any], scope: Scope, receive: Receive) -> Artifact:
        """Pass the body on as it comes. A refusal closes the connection: where the next request would begin is unknown."""
        content = parsing.Content(scope, receive, seconds=self._body_seconds)
        try:
            artifact: Artifact = await operation(*arguments, content)
        except RequestError as error:
            await content.drop()
            raise HttpRefusal(status_of(error), error.error_code, error.message, error.hint, [CLOSE]) from None
        return artifact

    async def _wait(self, operation: Operation, arguments: list[Any], receive: Receive) -> ResponseModel:
        """Call the operation; cancel it when the client disconnects or the daemon drains."""
        interruption = Interruption()
        interruption.when(lambda: until_gone(receive), ClientGone())
        interruption.when(self._draining.wait, Unavailable("the daemon is draining", hint="ask again when it is back"))
        with interruption:
            response: ResponseModel = await operation(*arguments)
        return response
