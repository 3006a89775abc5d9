"""Messages between a host and the relay: what the HTTP headers repeat of them, and the errors of the relay itself."""

from __future__ import annotations

import json
from binascii import b2a_base64

from aghbus.protocol.base.annotations import Any

Message = dict[str, Any]

VERSION = "io.modelcontextprotocol/protocolVersion"
INTERNAL_ERROR = -32603
PARSE_ERROR = -32700

_NAMED = {"resources/read": "uri", "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}
# Beside tools/call, and the tools that change nothing: what is sent again when the daemon stopped before it answered.
_CHANGING_METHODS = frozenset({"tasks/update", "tasks/cancel"})
_READING_TOOLS = frozenset({"whois", "peers", "work"})


def parse(line: bytes) -> Message | None:
    """The message of one line; None when it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def params_of(message: Message) -> dict[str, Any]:
    """The parameters; empty when they are no object."""
    found = message.get("params")
    return found if isinstance(found, dict) else {}


def is_request(message: Message) -> bool:
    """Whether the host waits for an answer."""
    return "method" in message and "id" in message


def answer_to(message: Message, body: bytes) -> bytes:
    """What the host gets when the daemon answers with `body`: with the id of its request, or nothing.

    The daemon leaves the id out where it could not read the message, and its API refuses in a form of its own.
    """
    if not body:
        return b""
    found = parse(body) or {}
    if "jsonrpc" in found:
        if "id" in found or not is_request(message):
            return body
        return json.dumps({**found, "id": message["id"]}).encode()
    if not is_request(message):
        return b""
    sentence = ": ".join(str(found[key]) for key in ("message", "hint") if found.get(key))
    return error(message["id"], INTERNAL_ERROR, sentence or "the daemon's answer is no JSON")


def headers_of(message: Message, session: str) -> dict[str, str]:
    """The headers of a POST with this message (specification 2026-07-28, Streamable HTTP, Request Metadata)."""
    params = params_of(message)
    meta = params.get("_meta")
    version = meta.get(VERSION) if isinstance(meta, dict) else None
    if version is None:
        return {"Mcp-Session-Id": session} if session else {}
    method = message.get("method")
    found = {"MCP-Protocol-Version": _header(version), "Mcp-Method": _header(method)}
    if (name := params.get(_NAMED.get(str(method), "name"))) is not None:
        found["Mcp-Name"] = _header(name)
    return found


def _header(value: object) -> str:
    """A header's value, in base64 where it would not survive as it is."""
    text = str(value)
    if text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{b2a_base64(text.encode('utf-8', 'replace'), newline=False).decode()}?="


def may_repeat(message: Message) -> bool:
    """Whether a request can be sent again when it is not known whether the daemon carried it out."""
    method, tool = message.get("method"), params_of(message).get("name")
    if method == "tools/call":
        return isinstance(tool, str) and tool in _READING_TOOLS
    return not (isinstance(method, str) and method in _CHANGING_METHODS)


def error(request_id: object, code: int, text: str) -> bytes:
    """An error response of the relay."""
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}}).encode()
