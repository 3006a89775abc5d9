"""Who calls: the era of the protocol that a request belongs to, and what its client can do.

**Modern** (2026-07-28): each request says its version and the client's capabilities in `_meta`, and HTTP headers repeat some of
it (specification 2026-07-28, Streamable HTTP, Request Metadata). **Legacy** (2025-11-25 and before): `initialize` says so once.
What matters of it is part of the session id, so that a session outlives a restart of the daemon.
"""

import base64
import binascii
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from aghbus.daemon.mcp.rpc import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    UNSUPPORTED_VERSION,
    Object,
    Request,
    RpcError,
)
from aghbus.daemon.services.session_leases import SESSION

MODERN_VERSIONS: Final = ("2026-07-28",)
LEGACY_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26")
VERSIONS: Final = (*MODERN_VERSIONS, *LEGACY_VERSIONS)

PREFIX: Final = "io.modelcontextprotocol/"
TASKS: Final = PREFIX + "tasks"
SESSION_HEADER: Final = b"mcp-session-id"

Wake = Literal["contacts", "all", "none"]
"""Whose messages a session is told of (`aghctl mcp --wake`)."""

# Which member of the parameters the header Mcp-Name repeats.
_NAMED: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
_SESSION: Final = re.compile(rb"1([f-])\.[0-9a-f]{32}").fullmatch
_BASE64: Final = re.compile(r"=\?base64\?(.*)\?=").fullmatch

Headers = Mapping[bytes, Sequence[bytes]]


class McpCaller(NamedTuple):
    """What is known of the caller. `version` is that of the protocol; `elicits`: it can ask its user with a form; `wake`: whose
    messages it is told of, and with `all` gets; `session`: the one that its relay reports, empty without a relay."""

    modern: bool
    version: str
    elicits: bool = False
    tasks: bool = False
    wake: Wake = "contacts"
    session: str = ""


def client_of(headers: Headers, request: Request) -> McpCaller:
    """The client of a request. Raises RpcError for a request that its era forbids, and a wrong header Aghbus-Wake or
    Aghbus-Session."""
    wake = _single(headers, b"aghbus-wake") or "contacts"
    if wake not in get_args(Wake):
        raise RpcError(INVALID_PARAMS, f"Invalid params: Aghbus-Wake: must be one of {', '.join(get_args(Wake))}")
    session = _single(headers, b"aghbus-session") or ""
    if session and SESSION.fullmatch(session) is None:
        raise RpcError(INVALID_PARAMS, f"Invalid params: Aghbus-Session: must match {SESSION.pattern}")
    return _client_of(headers, request)._replace(wake=cast(Wake, wake), session=session)


def _client_of(headers: Headers, request: Request) -> McpCaller:
    meta, stated = request.meta, _single(headers, b"mcp-protocol-version")
    version = meta.get(PREFIX + "protocolVersion")
    if version is None and (stated is None or stated in LEGACY_VERSIONS):
        return _legacy(headers, stated)
    if version is None:
        if stated not in MODERN_VERSIONS:
            raise _unsupported(stated)
        raise RpcError(INVALID_PARAMS, f"Invalid params: _meta: {PREFIX}protocolVersion is missing")
    return _modern(headers, request, version, stated)


def session_id(capabilities: Any) -> str:
    """The id of a new session of a legacy client with these capabilities."""
    return f"1{'f' if _elicits(capabilities) else '-'}.{secrets.token_hex(16)}"


def _legacy(headers: Headers, version: str | None) -> McpCaller:
    given = headers.get(SESSION_HEADER, ())
    if not given:
        return McpCaller(modern=False, version=version or LEGACY_VERSIONS[-1])
    found = _SESSION(given[0])
    if found is None:
        raise RpcError(INVALID_REQUEST, "Invalid Request: no such session", status=404)
    return McpCaller(modern=False, version=version or LEGACY_VERSIONS[-1], elicits=found[1] == b"f")


def _modern(headers: Headers, request: Request, version: object, stated: str | None) -> McpCaller:
    _check_headers(headers, request, version, stated)
    if not isinstance(version, str) or version not in MODERN_VERSIONS:
        raise _unsupported(version)
    capabilities = request.meta.get(PREFIX + "clientCapabilities")
    if not isinstance(capabilities, dict):
        raise RpcError(INVALID_PARAMS, f"Invalid params: _meta: {PREFIX}clientCapabilities is missing or no object")
    extensions = capabilities.get("extensions")
    tasks = isinstance(extensions, dict) and isinstance(extensions.get(TASKS), dict)
    return McpCaller(modern=True, version=version, elicits=_elicits(capabilities), tasks=tasks)


def _check_headers(headers: Headers, request: Request, version: object, stated: str | None) -> None:
    """Headers must repeat the body (specification 2026-07-28, Streamable HTTP, Server Validation)."""
    _check_header("MCP-Protocol-Version", stated, version)
    _check_header("Mcp-Method", _single(headers, b"mcp-method"), request.method)
    if (member := _NAMED.get(request.method)) is not None:
        _check_header("Mcp-Name", _decoded(_single(headers, b"mcp-name")), request.params.get(member))


def _check_header(name: str, stated: str | None, value: object) -> None:
    if stated is None:
        raise RpcError(HEADER_MISMATCH, f"Header mismatch: {name} is missing")
    if stated != value:
        raise RpcError(HEADER_MISMATCH, f"Header mismatch: {name} is not the value of the body")


def _single(headers: Headers, name: bytes) -> str | None:
    values = headers.get(name, ())
    if len(values) > 1 or any(not value.isascii() for value in values):
        raise RpcError(HEADER_MISMATCH, f"Header mismatch: {name.decode()} is repeated or not ASCII")
    return values[0].decode("ascii").strip() if values else None


def _decoded(value: str | None) -> str | None:
    found = None if value is None else _BASE64(value)
    if found is None:
        return value
    try:
        return base64.b64decode(found[1], validate=True).decode()
    except (binascii.Error, ValueError):
        raise RpcError(HEADER_MISMATCH, "Header mismatch: Mcp-Name is not valid base64 of UTF-8") from None


def _unsupported(version: object) -> RpcError:
    data: Object = {"supported": list(VERSIONS), "requested": version if isinstance(version, str) else ""}
    return RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def _elicits(capabilities: Any) -> bool:
    """Whether the client can show a form. An empty object means forms alone (specification, Elicitation, Capabilities)."""
    modes = capabilities.get("elicitation") if isinstance(capabilities, dict) else None
    return isinstance(modes, dict) and ("form" in modes or not modes)
