"""The ASGI application: find the route, parse, call the service, answer. Nothing that it is sent makes it raise."""

import asyncio
from typing import Any, Final

import msgspec

from aghbus.daemon.api import parsing
from aghbus.daemon.api.handlers import Call
from aghbus.daemon.api.http.asgi import CLOSE, ClientGone, Receive, Scope, Send, reply, until_gone
from aghbus.daemon.api.http.cancellation import Interruption
from aghbus.daemon.api.http.download import Download
from aghbus.daemon.api.http.errors import HttpRefusal, error_body, incident, request_error_body, status_of
from aghbus.daemon.api.http.sse import KEEP_ALIVE, Stream
from aghbus.daemon.api.openapi import document
from aghbus.daemon.api.route import Handler, Route
from aghbus.daemon.api.routes import Router, parameter_names
from aghbus.daemon.api.service import Service
from aghbus.protocol.api.base import ResponseModel
from aghbus.protocol.api.status import ReadinessResponse
from aghbus.protocol.errors import RequestError, Unavailable
from aghbus.protocol.text import escape

BODY_SECONDS: Final = 30.0
"""Seconds, ours: a body of a megabyte takes a millisecond on this machine; whoever needs longer is stuck."""


class ApiApp:
    """One service behind the table of routes, shared by every listener."""

    def __init__(
        self,
        service: Service,
        draining: asyncio.Event,
        *,
        max_body: int,
        body_seconds: float = BODY_SECONDS,
        keep_alive: float = KEEP_ALIVE,
    ) -> None:
        """`draining` ends streams and waits when set. `max_body` in bytes, the other two in seconds."""
        self._service = service
        self._draining = draining
        self._max_body = max_body
        self._body_seconds = body_seconds
        self._keep_alive = keep_alive
        self._router = Router()
        self._encoder = msgspec.json.Encoder()

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
            # cut off at the deadline of the drain; the connection went before, so that there is nobody to answer
        except HttpRefusal as refusal:
            body = error_body(refusal.code, refusal.message, refusal.hint)
            await reply(send, refusal.status, body, refusal.headers)
        except RequestError as error:
            await reply(send, status_of(error), request_error_body(error))
        except Exception as error:  # our own fault, whatever it is: the client hears its number, the log the rest
            await reply(send, 500, incident(error, method, where))

    async def _serve(self, method: str, where: str, scope: Scope, receive: Receive, send: Send) -> None:
        route, segments = self._router.find(method, where)
        call = await self._parse(route, segments, scope, receive)
        if route.stream is not None:
            events = route.stream(self._service, call)
            stream = Stream(send, events, lambda error: incident(error, method, where))
            await stream.run(receive, self._draining, self._keep_alive)
        elif route.upload is not None:
            await self._upload(route, call, scope, receive, send)
        elif route.download is not None:
            artifact, content = await route.download(self._service, call)
            await Download(send, artifact, content).run(where)
        elif route.handler is None:
            await reply(send, route.status, document())
        else:
            if route.waits:
                answer = await self._wait(route.handler, call, receive)
            else:
                answer = await route.handler(self._service, call)
            extra = [CLOSE] if self._draining.is_set() else []
            await reply(send, _status(route, answer), self._encoder.encode(answer), extra)

    async def _upload(
        self, route: Route, call: Call[Any, Any, Any], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Hand the body on as it comes. A refusal ends the connection, since nobody knows where the next request begins."""
        assert route.upload is not None
        content = parsing.Content(scope, receive, seconds=self._body_seconds)
        try:
            answer = await route.upload(self._service, call, content)
        except RequestError as error:
            await content.drop()
            raise HttpRefusal(status_of(error), error.error_code, error.message, error.hint, [CLOSE]) from None
        await reply(send, route.status, self._encoder.encode(answer))

    async def _parse(self, route: Route, segments: list[str], scope: Scope, receive: Receive) -> Call[Any, Any, Any]:
        path = parsing.path_parameters(parameter_names(route.path), segments, route.parameters)
        query = parsing.query_string(scope["query_string"], route.query)
        ask = None
        if route.ask is not None:
            raw = await parsing.body(
                scope, receive, limit=max(self._max_body, route.max_body or 0), seconds=self._body_seconds
            )
            ask = parsing.ask(raw, route.ask)
        resume_from = parsing.last_event_id(scope) if route.stream is not None else None
        return Call(path, query, ask, resume_from)

    async def _wait(self, handler: Handler, call: Call[Any, Any, Any], receive: Receive) -> ResponseModel:
        """Have the handler answer, as long as there is somebody to hear it."""
        interruption = Interruption()
        interruption.when(lambda: until_gone(receive), ClientGone())
        interruption.when(self._draining.wait, Unavailable("the daemon is draining", hint="ask again when it is back"))
        with interruption:
            return await handler(self._service, call)


def _status(route: Route, answer: ResponseModel) -> int:
    if type(answer) is ReadinessResponse and route.path == "/readyz":
        return 200 if answer.ready else 503
    return route.status
