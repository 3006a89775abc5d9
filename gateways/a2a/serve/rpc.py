"""gRPC: the SDK's service on the same operations. With several agents, `tenant` names the agent, as the cards say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import grpc
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.grpc_handler import GrpcHandler, GrpcServerCallContextBuilder
from a2a.types import a2a_pb2 as pb
from a2a.types import a2a_pb2_grpc
from a2a.utils.errors import VersionNotSupportedError

from aghbus.client import UsageError
from aghbus.gateways.a2a.base.options import Options
from aghbus.gateways.a2a.callers.auth import Authentication, Denied
from aghbus.gateways.a2a.callers.limits import Limits, TooMany
from aghbus.gateways.a2a.serve.handler import AGENT, CALLER, BusHandler
from aghbus.gateways.a2a.serve.http import CONNECTIONS
from aghbus.gateways.base.metrics import Metrics
from aghbus.protocol.formats.a2a.ids import Principal
from aghbus.protocol.formats.a2a.parts import Json

VERSION: Final = "a2a-version"
_caller: ContextVar[Principal | None] = ContextVar("caller", default=None)


class ContextBuilder(GrpcServerCallContextBuilder):
    """The context of calls: all agents, of which the handler takes that of the tenant."""

    def __init__(self, options: Options) -> None:
        self._agents = {agent.name: agent for agent in options.agents}

    def build(self, context: Any) -> ServerCallContext:
        """The context of one call. Raises VersionNotSupportedError."""
        sent = _metadata(context.invocation_metadata())
        version = sent.get(VERSION) or "0.3"
        if version.split(".")[0] != "1":
            raise VersionNotSupportedError(f"A2A-Version: {version} is not supported, 1.0 is")
        wanted = sent.get(HTTP_EXTENSION_HEADER.lower())
        state = {AGENT: self._agents, CALLER: _caller.get()}
        return ServerCallContext(state=state, requested_extensions=get_requested_extensions([wanted] if wanted else []))


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets only callers in who say who they are, as many calls of each as it may have, and counts calls."""

    def __init__(self, authentication: Authentication, limits: Limits, metrics: Metrics) -> None:
        self._authentication = authentication
        self._limits = limits
        self._metrics = metrics

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """The handler of a method, behind the guard. A caller without a valid token is refused before the message is read; one
        with a client certificate was let in by TLS."""
        found = await continuation(details)
        if found is None:
            return None
        self._metrics.count("requests_total", "gRPC", "0")
        caller = None
        if not self._authentication.certificates:
            try:
                caller = await self._caller(details.invocation_metadata)
            except Denied:
                return grpc.stream_stream_rpc_method_handler(_refuse)
        if found.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._streaming(found.unary_stream, caller), found.request_deserializer, found.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            self._single(found.unary_unary, caller), found.request_deserializer, found.response_serializer
        )

    def _single(
        self, answer: Callable[[Any, Any], Awaitable[Any]], caller: Principal | None
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        async def guarded(request: Any, context: Any) -> Any:
            async with self._let_in(request, context, caller):
                return await answer(request, context)

        return guarded

    def _streaming(
        self, answer: Callable[[Any, Any], AsyncIterator[Any]], caller: Principal | None
    ) -> Callable[[Any, Any], AsyncIterator[Any]]:
        async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
            async with self._let_in(request, context, caller):
                async for each in answer(request, context):
                    yield each

        return guarded

    async def _caller(self, metadata: Any, certificate: Json | None = None) -> Principal:
        """Raises Denied."""
        return await self._authentication.caller(_metadata(metadata).get("authorization"), certificate)

    @asynccontextmanager
    async def _let_in(self, request: Any, context: Any, caller: Principal | None) -> AsyncIterator[None]:
        try:
            who = caller or await self._caller(context.invocation_metadata(), _certificate(context))
        except Denied:
            await _refuse(None, context)
        _caller.set(who)
        try:
            with self._limits.request(who):
                if isinstance(request, pb.SendMessageRequest) and not request.message.task_id:
                    self._limits.open_task(who)
                yield
        except TooMany as error:
            again = ("retry-after", str(error.again))
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), trailing_metadata=(again,))


async def _refuse(_: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "credentials are missing or wrong")


def server_of(
    options: Options, handler: BusHandler, authentication: Authentication, limits: Limits, metrics: Metrics
) -> Any:
    """A gRPC server that is not started yet. Raises UsageError."""
    assert options.grpc is not None
    host, port = options.grpc
    settings = [("grpc.max_receive_message_length", options.max_body), ("grpc.so_reuseport", 0)]
    guard = Guard(authentication, limits, metrics)
    server = grpc.aio.server(interceptors=[guard], options=settings, maximum_concurrent_rpcs=CONNECTIONS)
    register: Any = a2a_pb2_grpc.add_A2AServiceServicer_to_server
    register(GrpcHandler(handler, ContextBuilder(options)), server)
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if options.tls_cert and options.tls_key:
            server.add_secure_port(where, _credentials(options))
        else:
            server.add_insecure_port(where)
    except RuntimeError:
        raise UsageError(f"--grpc: {where} cannot be used", "choose another port") from None
    return server


def _credentials(options: Options) -> Any:
    pair = Path(options.tls_key or "").read_bytes(), Path(options.tls_cert or "").read_bytes()
    authority = Path(options.client_ca).read_bytes() if options.client_ca else None
    return grpc.ssl_server_credentials([pair], root_certificates=authority, require_client_auth=authority is not None)


def _metadata(sent: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in sent or () if isinstance(value, str)}


def _certificate(context: Any) -> Json | None:
    """The client certificate as Python's `ssl` shows one, as far as names go."""
    about = context.auth_context()
    common = [value.decode("utf-8", "replace") for value in about.get("x509_common_name", ())]
    others = [value.decode("utf-8", "replace") for value in about.get("x509_subject_alternative_name", ())]
    if not common and not others:
        return None
    subject = tuple((("commonName", name),) for name in common)
    return {"subject": subject, "subjectAltName": tuple(("DNS", name) for name in others)}
