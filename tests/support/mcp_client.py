"""A small client of the Model Context Protocol over a daemon's socket, for both eras."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema

from tests.support.daemons import UnixClient

META = "io.modelcontextprotocol/"
FORMS: dict[str, Any] = {"elicitation": {}}
TASKS: dict[str, Any] = {"extensions": {META + "tasks": {}}}


class Reply:
    """One HTTP response: its status, headers, and the JSON-RPC messages in it."""

    def __init__(self, status: int, headers: dict[str, str], messages: list[dict[str, Any]]) -> None:
        self.status = status
        self.headers = headers
        self.messages = messages

    @property
    def last(self) -> dict[str, Any]:
        return self.messages[-1]

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = self.last["result"]
        return found

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.last["error"]
        return found


class McpClient:
    """A client with `capabilities`, in the modern era unless `session` names a legacy session. `relay` is what a relay says of
    its session."""

    def __init__(
        self,
        socket: Path,
        capabilities: dict[str, Any] | None = None,
        *,
        modern: bool = True,
        wake: str = "contacts",
        relay: str = "",
    ) -> None:
        self.socket = socket
        self.capabilities = capabilities or {}
        self.modern = modern
        self.wake = wake
        self.relay = relay
        self.session = ""
        self._next = 0

    def open_session(self, version: str = "2025-06-18") -> Reply:
        reply = self.request("initialize", protocolVersion=version, capabilities=self.capabilities, clientInfo={})
        self.session = reply.headers["mcp-session-id"]
        return reply

    def tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The structured content of a call that must succeed; it must fit the tool's output schema."""
        result = self.call(name, **arguments)
        assert not result.get("isError"), result
        found: dict[str, Any] = result["structuredContent"]
        definition = next(tool for tool in self.request("tools/list").result["tools"] if tool["name"] == name)
        jsonschema.validate(found, definition["outputSchema"], jsonschema.Draft202012Validator)
        assert json.loads(result["content"][0]["text"]) == found
        return found

    def call(self, name: str, *, more: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
        """The result of `tools/call`; `more` are parameters beside name and arguments."""
        return self.request("tools/call", name=name, arguments=arguments, **(more or {})).result

    def request(self, method: str, **params: Any) -> Reply:
        self._next += 1
        return self.post(self.message(method, self._next, params), self.headers(method, params))

    def message(self, method: str, request_id: Any, params: dict[str, Any]) -> dict[str, Any]:
        if self.modern:
            meta = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": self.capabilities}
            params = {"_meta": meta, **params}
        return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}

    def headers(self, method: str, params: dict[str, Any]) -> dict[str, str]:
        if not self.modern:
            return {"MCP-Protocol-Version": "2025-06-18", "Mcp-Session-Id": self.session} if self.session else {}
        named = {"resources/read": "uri", "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}
        name = params.get(named.get(method, "name"))
        found = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Aghbus-Wake": self.wake}
        found |= {"Aghbus-Session": self.relay} if self.relay else {}
        return {**found, "Mcp-Name": str(name)} if name is not None else found

    def post(self, body: Any, headers: dict[str, str]) -> Reply:
        """Send any body; `bytes` go out as they are."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        with closing(UnixClient(self.socket)) as connection:
            connection.request("POST", "/mcp", raw, {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            found = {key.lower(): value for key, value in response.getheaders()}
            if found.get("content-type") == "text/event-stream":
                return Reply(response.status, found, [json.loads(data) for data in _events(iter(response))])
            content = response.read()
            return Reply(response.status, found, [json.loads(content)] if content else [])

    def stream(self, method: str, **params: Any) -> Iterator[dict[str, Any]]:
        """The messages of a response as they come."""
        self._next += 1
        body = json.dumps(self.message(method, self._next, params)).encode()
        with closing(UnixClient(self.socket)) as connection:
            headers = {"Content-Type": "application/json", **self.headers(method, params)}
            connection.request("POST", "/mcp", body, headers)
            for data in _events(iter(connection.getresponse())):
                yield json.loads(data)


def _events(lines: Iterator[bytes]) -> Iterator[bytes]:
    for line in lines:
        if line.startswith(b"data: "):
            yield line[6:]
