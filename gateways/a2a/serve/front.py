"""What every request to the gateway passes: who calls, limits, counting, and the end of callers who have gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aghbus.gateways.a2a.base.bus import Agent
from aghbus.gateways.a2a.callers.auth import Authentication, Denied
from aghbus.gateways.a2a.callers.limits import Limits, TooMany
from aghbus.gateways.a2a.serve.handler import CALLER
from aghbus.gateways.base.metrics import Metrics
from aghbus.protocol.base.addresses import is_loopback
from aghbus.protocol.formats.a2a.ids import Principal
from aghbus.protocol.formats.a2a.parts import Json

ROOT: Final = "/a2a"
CARD: Final = "/.well-known/agent-card.json"
KEYS: Final = "/.well-known/jwks.json"
READING: Final = frozenset({"GET", "HEAD"})
METHODS: Final = frozenset({"GET", "POST", "DELETE"})
"""Those that are counted by name."""
JSON_TYPES: Final = ("application/json", "application/a2a+json")
BODY_SECONDS: Final = 30.0


class Front:
    """An ASGI application around another one."""

    def __init__(
        self,
        app: ASGIApp,
        authentication: Authentication,
        limits: Limits,
        metrics: Metrics,
        max_body: int,
        names: frozenset[str] | None,
        agents: Iterable[Agent],
    ) -> None:
        """`names`: where nobody is asked who he is, requests have to be for one of these hosts or loopback, and of no web page."""
        self._app = app
        self._authentication = authentication
        self._limits = limits
        self._metrics = metrics
        self._max_body = max_body
        self._names = names
        bases = [f"{ROOT}/{agent.name}" for agent in agents]
        self._rpc = frozenset(f"{base}{slash}" for base in bases for slash in ("", "/"))
        public = [ROOT, f"{ROOT}/", CARD, KEYS, *(f"{base}{CARD}" for base in bases)]
        self._public = frozenset(path.encode() for path in public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection event: a request, or the life of the server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._respond(scope, receive, counted)
        finally:
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._metrics.count("requests_total", method, str(status))

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if self._names is not None and not self._is_local(self._names, headers):
            await _refuse(send, 403, "PERMISSION_DENIED", "not for web pages or other hosts", "PERMISSION_DENIED")
            return
        if scope["method"] in READING and scope["raw_path"] in self._public:  # whatever its body is, it is not read
            await self._run(scope, b"", receive, send)
            return
        certificate = scope.get("state", {}).get("certificate")
        try:
            scope[CALLER] = caller = await self._authentication.caller(headers.get("authorization"), certificate)
        except Denied:
            await _refuse(send, 401, "UNAUTHENTICATED", "credentials are missing or wrong", "UNAUTHENTICATED")
            return
        try:
            with self._limits.request(caller):
                await self._respond_to(caller, scope, headers, receive, send)
        except TooMany as error:
            again = [(b"retry-after", str(error.again).encode())]
            await _refuse(send, 429, "RESOURCE_EXHAUSTED", str(error), "RATE_LIMITED", again)

    async def _respond_to(
        self, caller: Principal, scope: Scope, headers: dict[str, str], receive: Receive, send: Send
    ) -> None:
        path, body = scope["path"], b""
        if scope["method"] == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    read = await self._body(headers, receive)
            except TimeoutError:
                await _refuse(
                    send, 408, "DEADLINE_EXCEEDED", f"the body took longer than {BODY_SECONDS:g} s", "TOO_SLOW"
                )
                return
            if read is None:
                await _refuse(
                    send, 413, "INVALID_ARGUMENT", f"the body is longer than {self._max_body} bytes", "TOO_LARGE"
                )
                return
            if kind not in JSON_TYPES and (read or kind):
                await self._wrong_type(path, read, send)
                return
            try:
                content = msgspec.json.decode(read) if read else None
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                await self._no_json(path, send)
                return
            if self._opens_task(path, content):
                self._limits.open_task(caller)
            body = read
        await self._run(scope, body, receive, send)

    def _is_local(self, names: frozenset[str], headers: dict[str, str]) -> bool:
        """Whether a request is neither of a web page nor for a name that somebody has made lead here."""
        host = headers.get("host", "").lower()
        plain = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.rpartition(":")[0] or host
        return "origin" not in headers and (is_loopback(plain) or plain in names)

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes | None:
        """The body of a request; None when it is too long."""
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._max_body:
            return None
        pieces = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return bytes(pieces)
            pieces += message.get("body", b"")
            if len(pieces) > self._max_body:
                return None
            if not message.get("more_body"):
                return bytes(pieces)

    async def _run(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Let the application respond, as long as its client is there."""
        given = False
        gone = asyncio.Event()

        async def replayed() -> Message:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()

        response = asyncio.ensure_future(self._app(scope, replayed, send))
        watching = asyncio.ensure_future(watch())
        try:
            await asyncio.wait((response, watching), return_when=asyncio.FIRST_COMPLETED)
            if not response.done():
                await asyncio.wait((response,), timeout=1.0)  # a stream ends itself
                response.cancel()
            await asyncio.gather(response, return_exceptions=watching.done())
        finally:
            response.cancel()
            watching.cancel()

    def _opens_task(self, path: str, content: Any) -> bool:
        """Whether a request sends a message that is not one of a task that there is."""
        if path in self._rpc:
            known = isinstance(content, dict) and content.get("method") in ("SendMessage", "SendStreamingMessage")
            content = content.get("params") if known else None
        elif not path.endswith(("/message:send", "/message:stream")):
            return False
        message = content.get("message") if isinstance(content, dict) else None
        return isinstance(message, dict) and not (message.get("taskId") or message.get("task_id"))

    async def _no_json(self, path: str, send: Send) -> None:
        """Refuse what the SDK's parsers take for a fault of the server: other encodings than UTF-8, NaN, thousands of levels."""
        message = "the body is not JSON in UTF-8"
        if path in self._rpc:
            error = {"code": -32700, "message": message}
            await _send_json(send, 200, {"jsonrpc": "2.0", "id": None, "error": error})
        else:
            await _refuse(send, 400, "INVALID_ARGUMENT", message, "INVALID_REQUEST")

    async def _wrong_type(self, path: str, body: bytes, send: Send) -> None:
        """Refuse a body that says that it is not JSON."""
        message = "Content-Type: must be application/json"
        if path not in self._rpc:
            await _refuse(send, 415, "INVALID_ARGUMENT", message, "CONTENT_TYPE_NOT_SUPPORTED")
            return
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            request = None
        identity = request.get("id") if isinstance(request, dict) else None
        error = {"code": -32005, "message": message, "data": [_info("CONTENT_TYPE_NOT_SUPPORTED")]}
        await _send_json(send, 200, {"jsonrpc": "2.0", "id": identity, "error": error})


def _info(reason: str) -> Json:
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "a2a-protocol.org",
        "metadata": {},
    }


async def _refuse(
    send: Send, status: int, name: str, message: str, reason: str, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    error = {"code": status, "status": name, "message": message, "details": [_info(reason)]}
    challenge = [(b"www-authenticate", b'Bearer realm="a2a"')] if status == 401 else []
    await _send_json(send, status, {"error": error}, [*challenge, *headers])


async def _send_json(send: Send, status: int, content: Any, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    body = json.dumps(content).encode()
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
