"""The calls to an A2A agent, in the binding of its card, with errors by what is known of the call: see AgentError."""

from __future__ import annotations

import copy
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx
from a2a.client.client import Client, ClientCallContext, ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types import a2a_pb2 as pb
from a2a.utils.constants import VERSION_HEADER, TransportProtocol
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidAgentResponseError,
    MethodNotFoundError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from aghbus.client.errors import UsageError
from aghbus.protocol.base.addresses import is_loopback
from aghbus.protocol.base.text import shorten
from aghbus.protocol.formats.a2a.parts import Json

CONNECT_SECONDS: Final = 10.0
CALL_SECONDS: Final = 30.0
"""Seconds for the answer to a call that looks at a task or cancels it."""
SEND_SECONDS: Final = 3_600.0
"""Seconds for the answer to a message from an agent that has no streams: it may answer at the end of the task."""
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Of one message over gRPC."""
_ERROR_CHARACTERS: Final = 300
_NOT_NOW: Final = frozenset({401, 403, 407, 408, 429, 503})
"""HTTP statuses by which an agent, or what is before it, says that it has not taken the request."""
_NOT_NOW_GRPC: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"})
_LOST_GRPC: Final = frozenset({"UNAVAILABLE", "INTERNAL", "UNKNOWN", "CANCELLED", "ABORTED", "DEADLINE_EXCEEDED"})
_BINDINGS: Final = {
    "jsonrpc": TransportProtocol.JSONRPC,
    "http-json": TransportProtocol.HTTP_JSON,
    "grpc": TransportProtocol.GRPC,
}
BINDINGS: Final = tuple(_BINDINGS)


_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VISIBLE: Final = re.compile(r"[ -~]*")
_TOKEN: Final = re.compile(r"[!-~]+")


class AgentError(Exception):
    """A call failed. The text is the agent's, or tells what happened."""


class Away(AgentError):
    """The agent was not reached, or said that it did not take the call: nothing has happened there."""


class Lost(AgentError):
    """It is not known whether the agent has got the call."""


class Refused(AgentError):
    """The agent answered that it does not do this."""


class NoSuchTask(Refused):
    """The agent does not know the task."""


class NotSupported(Refused):
    """The agent does not have this operation."""


class Access(NamedTuple):
    """How an agent is reached: files with a bearer token and with header lines, a client certificate and its key, and the
    certificates of authorities; whether plain HTTP is allowed beyond this host, and other hosts beside that of the card."""

    bearer_file: str | None = None
    header_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    ca: str | None = None
    allow_http: bool = False
    hosts: tuple[str, ...] = ()

    def check(self, url: str, what: str, card_host: str | None = None) -> None:
        """Raises UsageError for a URL that our credentials and works must not go to."""
        parts = urlsplit(url if "//" in url else f"//{url}")
        host = parts.hostname or ""
        if not host:
            raise UsageError(f"{what}: {url} has no host")
        if parts.scheme == "http" and not is_loopback(host) and not self.allow_http:
            hint = "use https, or --allow-http where the network itself is protected"
            raise UsageError(f"{what}: {url} is not encrypted, so everybody on the way can read works and tokens", hint)
        if card_host is not None and host != card_host and host not in self.hosts:
            hint = f"allow it with --allow-host {host}, if works and credentials may go there"
            raise UsageError(f"{what}: {url} is at another host than the card ({card_host})", hint)

    def headers(self) -> dict[str, str]:
        """The headers of a call, read anew: a token may be replaced while we run. Raises Away."""
        found: dict[str, str] = {}
        try:
            for line in Path(self.header_file).read_text(encoding="utf-8").splitlines() if self.header_file else ():
                name, colon, value = line.partition(":")
                if line.strip() and not line.startswith("#"):
                    if not colon or not _HEADER_NAME.fullmatch(name.strip()) or not _VISIBLE.fullmatch(value.strip()):
                        raise Away(f"--header-file: {self.header_file} must have lines `Name: value` in ASCII")
                    found[name.strip()] = value.strip()
            if self.bearer_file is not None:
                token = Path(self.bearer_file).read_text(encoding="utf-8").strip()
                if not _TOKEN.fullmatch(token):
                    raise Away(
                        f"--bearer-file: {self.bearer_file} must have one token: ASCII characters without spaces"
                    )
                found["Authorization"] = f"Bearer {token}"
        except (OSError, UnicodeDecodeError) as error:
            raise Away(f"the credentials cannot be read: {error}") from None
        return found

    def tls(self) -> ssl.SSLContext:
        """Raises UsageError."""
        what = "--ca"
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.client_cert is not None:
                what = "--client-cert and --client-key"
                context.load_cert_chain(self.client_cert, self.client_key, password="")
        except (OSError, ssl.SSLError) as error:
            hint = "they must be PEM: certificates, and a key without a password that belongs to the first one"
            raise UsageError(f"{what} cannot be used: {error}", hint) from None
        return context

    def http_client(self) -> httpx.AsyncClient:
        """A client for HTTP. Raises UsageError."""
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)  # calls have limits of their own, streams none
        return httpx.AsyncClient(verify=self.tls(), timeout=timeout, headers={VERSION_HEADER: "1.0"})

    def grpc_channel(self, url: str) -> Any:
        """A channel to the address of a gRPC interface."""
        import grpc

        parts = urlsplit(url if "//" in url else f"//{url}")
        options = (
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.initial_reconnect_backoff_ms", 500),
            ("grpc.max_reconnect_backoff_ms", 15_000),
        )
        if parts.scheme == "http" or (not parts.scheme and is_loopback(parts.hostname or "")):
            return grpc.aio.insecure_channel(parts.netloc, options=options)
        roots = self.ca or ssl.get_default_verify_paths().cafile  # those of the HTTP bindings, not gRPC's own
        files = (roots, self.client_cert and (self.client_key or self.client_cert), self.client_cert)
        contents = (None if path is None else Path(path).read_bytes() for path in files)
        return grpc.aio.secure_channel(parts.netloc, grpc.ssl_channel_credentials(*contents), options=options)


class Agent:
    """An agent behind the interface of its card that is used. Every method raises AgentError."""

    def __init__(self, card: Json, access: Access, http: httpx.AsyncClient, card_url: str, binding: str | None) -> None:
        """Raises UsageError for a card without an interface that can be used here."""
        from a2a.client.card_resolver import parse_agent_card

        self._access = access
        wanted = [_BINDINGS[binding]] if binding else list(_BINDINGS.values())
        if find_spec("grpc") is None:
            wanted = [one for one in wanted if one != TransportProtocol.GRPC]
        config = ClientConfig(
            httpx_client=http,
            grpc_channel_factory=access.grpc_channel,
            supported_protocol_bindings=[*wanted],
            polling=False,
        )
        try:
            parsed: pb.AgentCard = parse_agent_card(copy.deepcopy(card))  # which changes it
        except ParseError as error:
            raise UsageError(f"the card at {card_url} is not one of A2A: {error}") from None
        usable = [one for one in parsed.supported_interfaces if one.protocol_binding in wanted]
        host = urlsplit(card_url).hostname
        for one in usable[:]:
            access.check(one.url, f"the {one.protocol_binding} interface of the card", host)
        del parsed.supported_interfaces[:]
        parsed.supported_interfaces.extend(usable)
        try:
            self._client: Client = ClientFactory(config).create(parsed)
            self._unstreamed: Client = ClientFactory(replace(config, streaming=False)).create(parsed)
        except ValueError:
            offered = ", ".join(
                sorted({str(one.get("protocolBinding")) for one in card.get("supportedInterfaces") or ()})
            )
            hint = "gRPC needs: pip install 'aghbus[a2a-grpc]'" if "GRPC" in offered else ""
            raise UsageError(
                f"the card has no interface that can be used here (it has: {offered or 'none'})", hint
            ) from None
        self.binding = usable[0].protocol_binding
        self.url = usable[0].url
        self.streams = parsed.capabilities.streaming

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
        await self._unstreamed.close()

    async def send(self, message: Json, trace: Mapping[str, str]) -> AsyncGenerator[Json, None]:
        """The events that answer a message, for as long as the agent keeps the stream open."""
        request = pb.SendMessageRequest(message=ParseDict(message, pb.Message()))
        request.configuration.return_immediately = not self.streams
        context = self._context(None if self.streams else SEND_SECONDS, trace)
        async for event in self._events(lambda: self._client.send_message(request, context=context)):
            yield event

    async def tell(self, message: Json, trace: Mapping[str, str]) -> Json:
        """Send a message to a task that runs: the task at its next step or earlier, or a message in answer."""
        request = pb.SendMessageRequest(message=ParseDict(message, pb.Message()))
        request.configuration.return_immediately = True
        context = self._context(SEND_SECONDS, trace)
        async with aclosing(self._events(lambda: self._unstreamed.send_message(request, context=context))) as events:
            async for event in events:
                return event
        raise Lost("the agent did not answer the message")

    async def subscribe(self, task_id: str) -> AsyncGenerator[Json, None]:
        """The events of a task from now on; the first one is the task."""
        request, context = pb.SubscribeToTaskRequest(id=task_id), self._context(None)
        async for event in self._events(lambda: self._client.subscribe(request, context=context)):
            yield event

    async def get(self, task_id: str) -> Json:
        """The task."""
        request = pb.GetTaskRequest(id=task_id)
        return await self._call(lambda context: self._client.get_task(request, context=context))

    async def tasks_of(self, context_id: str) -> list[Json]:
        """The tasks of a context."""
        request = pb.ListTasksRequest(context_id=context_id)
        found = await self._call(lambda context: self._client.list_tasks(request, context=context))
        return [task for task in found.get("tasks") or () if task.get("contextId") == context_id]

    async def cancel(self, task_id: str) -> None:
        """Cancel a task. One that has ended, or that cannot be canceled, is left as it is (Refused)."""
        request = pb.CancelTaskRequest(id=task_id)
        await self._call(lambda context: self._client.cancel_task(request, context=context))

    def _context(self, seconds: float | None, trace: Mapping[str, str] = {}) -> ClientCallContext:
        return ClientCallContext(timeout=seconds, service_parameters={**trace, **self._access.headers()})

    async def _call(self, call: Callable[[ClientCallContext], Awaitable[Any]]) -> Json:
        try:
            answer: Json = MessageToDict(await call(self._context(CALL_SECONDS)))
        except Exception as error:
            raise error_of(error) from error
        return answer

    async def _events(self, call: Callable[[], Any]) -> AsyncGenerator[Json, None]:
        try:
            async with aclosing(call()) as events:
                async for event in events:
                    yield MessageToDict(event)
        except (AgentError, GeneratorExit):
            raise
        except Exception as error:
            raise error_of(error) from error


def tls_fault(error: BaseException | None) -> tuple[str, str] | None:
    """What a failed TLS handshake was about, and a hint; None for another error. Nothing was sent then."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    if isinstance(error, ssl.SSLCertVerificationError):
        why, hint = error.verify_message or str(error), "--ca FILE gives the certificate of its authority"
        if "expired" in why or "not yet valid" in why:
            hint = "its operator has to renew it; or is the clock of this machine wrong?"
        elif "mismatch" in why:
            hint = "use the name that the certificate is for"
        return f"the certificate of the agent is not accepted: {why}", hint
    if error is not None and "ALERT" in (error.reason or ""):
        hint = "--client-cert and --client-key give a certificate that it accepts"
        return (
            f"the agent refuses the connection, as it does without its kind of client certificate: {error.reason}",
            hint,
        )
    return None


def error_of(error: Exception) -> AgentError:
    """What an exception of the SDK says about its call."""
    if isinstance(error, AgentError):
        return error
    return Away(fault[0]) if (fault := tls_fault(error)) is not None else _error_of(error)


def _error_of(error: Exception) -> AgentError:
    cause, text = error.__cause__, shorten(str(error) or type(error).__name__, _ERROR_CHARACTERS)
    for one in (cause, error):
        if isinstance(one, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.UnsupportedProtocol):
            return Away(shorten(str(one) or type(one).__name__, _ERROR_CHARACTERS))
    if isinstance(cause, httpx.HTTPStatusError):
        status = cause.response.status_code
        if status in _NOT_NOW:
            return Away(f"HTTP {status}{_meaning(status)}")
        if status >= 500 and type(error) is A2AClientError:
            return Lost(f"HTTP {status}")
        if type(error) is A2AClientError:
            return Refused(f"HTTP {status}")
    code = getattr(getattr(cause, "code", lambda: None)(), "name", "")
    if code and type(error) is A2AClientError:
        return _grpc_error(code, text)
    if isinstance(error, TaskNotFoundError):
        return NoSuchTask(text)
    if isinstance(error, MethodNotFoundError | UnsupportedOperationError):
        return NotSupported(text)
    if isinstance(error, A2AError) and not isinstance(
        error, A2AClientError | InternalError | InvalidAgentResponseError
    ):
        return Refused(text)
    return NotSupported(text) if isinstance(error, NotImplementedError) else Lost(text)


def _grpc_error(code: str, text: str) -> AgentError:
    if code in _NOT_NOW_GRPC or (code == "UNAVAILABLE" and "failed to connect" in text.lower()):
        return Away(text)
    if code in _LOST_GRPC:
        return Lost(text)
    return NotSupported(text) if code == "UNIMPLEMENTED" else NoSuchTask(text) if code == "NOT_FOUND" else Refused(text)


def _meaning(status: int) -> str:
    if status in (401, 403):
        return ": the agent does not accept our credentials"
    return ": it is busy" if status in (429, 503) else ""
