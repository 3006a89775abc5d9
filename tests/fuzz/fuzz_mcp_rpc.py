"""Target `mcp_rpc`: any bytes as a message of an agent host, through the relay's headers to the daemon's server."""

import base64
from collections.abc import Iterator
from typing import Any, Final

from msgspec import UNSET

from aghbus.cli.mcp import messages as relay
from aghbus.daemon.mcp import rpc
from aghbus.daemon.mcp.client import MODERN_VERSIONS, PREFIX, client_of, session_id
from tests.fuzz.oracles import any_json, dump, same

_META: Final[dict[str, Any]] = {
    PREFIX + "protocolVersion": MODERN_VERSIONS[0],
    PREFIX + "clientCapabilities": {"elicitation": {"form": {}}, "extensions": {PREFIX + "tasks": {}}},
}
_CALLS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("server/discover", {}),
    ("tools/list", {"cursor": "x"}),
    ("tools/call", {"name": "inbox", "arguments": {"limit": 3}}),
    ("tools/call", {"name": "work\r\nX-Evil: 1", "arguments": {}, "inputResponses": {"q": {"action": "accept"}}}),
    ("tools/call", {"name": "w\u00e9rk", "arguments": {}}),
    ("resources/read", {"uri": "aghbus://works/ a b "}),
    ("prompts/get", {"name": "join"}),
    ("tasks/update", {"taskId": "=?base64?eA==?=", "inputResponses": {}}),
    ("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["aghbus://inbox"]}}),
)
_CODES: Final = (rpc.PARSE_ERROR, rpc.INVALID_REQUEST)


def check(raw: bytes) -> None:
    """Check the invariants for any bytes. Raises AssertionError."""
    line, *values = raw.split(b"\n")
    headers = _relay(line)
    try:
        message = rpc.parse(line)
    except rpc.RpcError as error:
        assert error.code in _CODES
        _is_error(rpc.error_message(None, error), None)
        return
    if message.method is UNSET or message.id is UNSET or message.id is None:
        return
    request = rpc.Request(message.id, message.method, message.params)
    result = any_json(rpc.result_message(request.id, {"ok": True}))
    assert same(result, {"jsonrpc": "2.0", "id": request.id, "result": {"ok": True}}), "an id changed"
    _client(request, {name: [value] for name, value in zip(_NAMES, values, strict=False)})
    _client(request, {})
    _agree(request, headers)


_NAMES: Final = (b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"mcp-session-id")


def seeds() -> Iterator[bytes]:
    """Requests of both eras, answers and notifications; one with headers of its own after it."""
    for number, (method, params) in enumerate(_CALLS):
        modern = {"jsonrpc": "2.0", "id": number, "method": method, "params": {"_meta": _META, **params}}
        yield dump(modern)
        yield dump({"jsonrpc": "2.0", "id": f"id {number}", "method": method, "params": params})
        yield dump(modern) + b"\n2026-07-28\n" + method.encode() + b"\n=?base64?!?=\n1f." + b"0" * 32
    yield dump({"jsonrpc": "2.0", "id": "aghbus-0", "result": {"action": "accept", "content": {"answer": "x"}}})
    yield dump({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {"a": []}}})


def _relay(line: bytes) -> dict[str, str]:
    """The relay's headers cannot end their line, and survive HTTP."""
    found = relay.parse(line)
    if found is None:
        return {}
    headers = relay.headers_of(found, session_id({}))
    for name, value in headers.items():
        assert value.isascii() and value.isprintable() and value == value.strip(), name
    assert isinstance(relay.may_repeat(found), bool)
    answer = relay.answer_to(found, b'{"code":"x","message":"y"}')
    assert bool(answer) == relay.is_request(found) and b"\n" not in answer
    return headers


def _client(request: rpc.Request, headers: dict[bytes, list[bytes]]) -> rpc.RpcError | None:
    """Only RpcError, whose response is JSON that repeats the id."""
    try:
        client = client_of(headers, request)
    except rpc.RpcError as error:
        _is_error(rpc.error_message(request.id, error), request.id)
        return error
    assert client.modern == (client.version in MODERN_VERSIONS)
    return None


def _agree(request: rpc.Request, headers: dict[str, str]) -> None:
    """What the relay says in its headers is what the server reads in the message."""
    encoded = {name.lower().encode(): [value.encode()] for name, value in headers.items()}
    refused = _client(request, encoded)
    plain = request.method.isascii() and request.method.isprintable() and request.method == request.method.strip()
    plain = plain and not request.method.startswith(
        "=?base64?"
    )  # the server decodes names only: no method is called so
    known = request.meta.get(PREFIX + "protocolVersion") in MODERN_VERSIONS
    named = headers.get("Mcp-Name", "")
    if refused is not None and refused.code == rpc.HEADER_MISMATCH:
        member = request.params.get({"resources/read": "uri"}.get(request.method, "name"), "")
        member = request.params.get("taskId", "") if request.method.startswith("tasks/") else member
        assert not (plain and known and named and isinstance(member, str)), f"{refused.message}: {headers}"
    if named.startswith("=?base64?"):
        base64.b64decode(named[9:-2], validate=True).decode()


def _is_error(raw: bytes, request_id: Any) -> None:
    found = any_json(raw)
    assert isinstance(found, dict) and same(found.get("id"), request_id)
    text = found["error"]["message"]
    assert len(text) <= 500 and text.isprintable()
