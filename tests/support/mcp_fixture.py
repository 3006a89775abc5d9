"""A server with the tools, resources and prompts that the conformance kit of the Model Context Protocol calls by name.

A process of its own: `python -m tests.support.mcp_fixture` prints its URL and serves until it is killed. Only what the daemon
offers is ours here (McpServer, McpEndpoint, the HTTP server); the kit's fixtures stand in place of the bus.
"""

import asyncio
import base64
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from aghbus.daemon.api.http.cancellation import Draining
from aghbus.daemon.api.http.connection import ListenerState
from aghbus.daemon.api.http.exchange import Exchange
from aghbus.daemon.api.http.tcp_guard import LoopbackGuard
from aghbus.daemon.base.logs import EventLimiter
from aghbus.daemon.mcp.call import InputRequired, ToolCall
from aghbus.daemon.mcp.client import PREFIX, Wake
from aghbus.daemon.mcp.endpoint import McpEndpoint
from aghbus.daemon.mcp.offer import Offer, Perform, Prompt, Tool
from aghbus.daemon.mcp.rpc import MISSING_CAPABILITY, Object, RpcError
from aghbus.daemon.mcp.server import McpServer
from aghbus.protocol.base.errors import InvalidRequest
from tests.support.mcp_fixture_tasks import FixtureTasks, performed

_PIXEL: Final = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
_SOUND: Final = base64.b64encode(b"RIFF\x24\x00\x00\x00WAVEfmt ").decode()


def text(value: str) -> Object:
    return {"type": "text", "text": value}


def content(*items: Object) -> Object:
    return {"content": list(items)}


IMAGE: Final[Object] = {"type": "image", "data": _PIXEL, "mimeType": "image/png"}
AUDIO: Final[Object] = {"type": "audio", "data": _SOUND, "mimeType": "audio/wav"}


def embedded(uri: str, mime: str, value: str) -> Object:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": value}}


def form(message: str, properties: Object, required: Sequence[str] = ()) -> Object:
    return {
        "message": message,
        "requestedSchema": {"type": "object", "properties": properties, "required": list(required)},
    }


def returns(result: Object) -> Perform:
    async def perform(_call: ToolCall, _arguments: Object) -> Object:
        return result

    return perform


async def fails(_call: ToolCall, _arguments: Object) -> Object:
    raise InvalidRequest("This tool intentionally returns an error for testing")


async def with_progress(call: ToolCall, _arguments: Object) -> Object:
    token = call.request.meta.get("progressToken")
    for progress in (0, 50, 100):
        if token is not None:
            await call.notify("notifications/progress", {"progressToken": token, "progress": progress, "total": 100})
    return content(text("done"))


def asks(key: str, request: Object, answer: Callable[[Any], str], *, state: str | None = None) -> Perform:
    """A tool that puts one form to the user."""

    async def perform(call: ToolCall, _arguments: Object) -> Object:
        if not call.client.elicits:
            raise InvalidRequest("the client has no elicitation")
        reply = await call.ask(key, "elicitation/create", request, state=state)
        if not isinstance(reply, dict) or "action" not in reply:
            raise InvalidRequest("not an answer")
        return content(text(answer(reply)))

    return perform


async def elicitation(call: ToolCall, arguments: Object) -> Object:
    properties = {"username": {"type": "string"}, "email": {"type": "string"}}
    reply = await call.ask("user", "elicitation/create", form(str(arguments.get("message")), properties, [*properties]))
    return content(text(f"User response: {json.dumps(reply)}"))


async def two_rounds(call: ToolCall, _arguments: Object) -> Object:
    """The state says which answer is awaited."""
    second = form("Step 2: What is your favorite color?", {"color": {"type": "string"}}, ["color"])
    first = form("Step 1: What is your name?", {"name": {"type": "string"}}, ["name"])
    if call.state != "round-2":
        await call.ask("step1", "elicitation/create", first, state="round-1")
    reply = await call.ask("step2", "elicitation/create", second, state="round-2")
    return content(text(f"done {json.dumps(reply)}"))


async def confirmed(call: ToolCall, _arguments: Object) -> Object:
    request = form("Please confirm", {"ok": {"type": "boolean"}}, ["ok"])
    await call.ask("confirm", "elicitation/create", request, state="opaque")
    return content(text("state-ok"))


async def declared_only(call: ToolCall, _arguments: Object) -> Object:
    """Asks for what the client has declared, all at once."""
    declared = call.request.meta[PREFIX + "clientCapabilities"]
    sample = {"messages": [{"role": "user", "content": text("Hello")}], "maxTokens": 10}
    requests: Object = {}
    if call.client.elicits:
        requests["user_name"] = {"method": "elicitation/create", "params": NAME}
    if "sampling" in declared:
        requests["sample"] = {"method": "sampling/createMessage", "params": sample}
    raise InputRequired(requests, None)


def summary(reply: Any) -> str:
    return f"Elicitation completed: action={reply['action']}, content={json.dumps(reply.get('content'))}"


DEFAULTS: Final[Object] = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
_TITLED: Final = [
    {"const": f"value{n}", "title": f"{word} Option"} for n, word in enumerate(("First", "Second", "Third"), 1)
]
ENUMS: Final[Object] = {
    "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
    "titledSingle": {"type": "string", "oneOf": _TITLED},
    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2"]}},
    "titledMulti": {"type": "array", "items": {"anyOf": _TITLED}},
}
NAME: Final = form("What is your name?", {"name": {"type": "string"}}, ["name"])


async def streamed(call: ToolCall, arguments: Object) -> Object:
    await call.notify("notifications/progress", {"progressToken": "streamed", "progress": 1})
    return await elicitation(call, arguments)


async def needs_sampling(_call: ToolCall, _arguments: Object) -> Object:
    data: Object = {"requiredCapabilities": {"sampling": {}}}
    raise RpcError(MISSING_CAPABILITY, "Missing required client capability", data)


PERFORMED: Final[Mapping[str, Perform]] = {
    "test_simple_text": returns(content(text("This is a simple text response for testing."))),
    "test_image_content": returns(content(IMAGE)),
    "test_audio_content": returns(content(AUDIO)),
    "test_embedded_resource": returns(
        content(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."))
    ),
    "test_multiple_content_types": returns(
        content(
            text("Multiple content types test:"),
            IMAGE,
            embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        )
    ),
    "test_error_handling": fails,
    "test_tool_with_progress": with_progress,
    "test_missing_capability": needs_sampling,
    "test_elicitation": elicitation,
    "test_streaming_elicitation": streamed,
    "test_logging_tool": returns(content(text("nothing is logged"))),
    "test_elicitation_sep1034_defaults": asks("d", form("Please review", DEFAULTS), summary),
    "test_elicitation_sep1330_enums": asks("e", form("Please choose", ENUMS), summary),
    "test_input_required_result_elicitation": asks(
        "user_name", NAME, lambda reply: f"Hello, {(reply.get('content') or {}).get('name')}!"
    ),
    "test_input_required_result_request_state": confirmed,
    "test_input_required_result_tampered_state": confirmed,
    "test_input_required_result_capabilities": declared_only,
    "test_input_required_result_multi_round": two_rounds,
}


class FixtureResources:
    """Static resources, and one template."""

    listed: Sequence[Object] = (
        {"uri": "test://static-text", "name": "text", "mimeType": "text/plain"},
        {"uri": "test://static-binary", "name": "binary", "mimeType": "image/png"},
    )
    templates: Sequence[Object] = ({"uriTemplate": "test://template/{id}/data", "name": "template"},)

    async def read(self, uri: str, _wake: Wake) -> Sequence[Object] | None:
        if uri == "test://static-text":
            return [{"uri": uri, "mimeType": "text/plain", "text": "This is the content of the static text resource."}]
        if uri == "test://static-binary":
            return [{"uri": uri, "mimeType": "image/png", "blob": _PIXEL}]
        if found := re.fullmatch(r"test://template/([^/]+)/data", uri):
            data = {"id": found[1], "templateTest": True, "data": f"Data for ID: {found[1]}"}
            return [{"uri": uri, "mimeType": "application/json", "text": json.dumps(data)}]
        return None

    def can_watch(self, uri: str) -> bool:
        return uri.startswith("test://")

    async def changes(self, uris: frozenset[str], _wake: Wake) -> AsyncIterator[str]:
        for uri in sorted(uris):
            yield uri
        await asyncio.Event().wait()


def _messages(*items: Object) -> Object:
    return {"messages": [{"role": "user", "content": item} for item in items]}


async def simple_prompt(_call: ToolCall, _arguments: Mapping[str, Any]) -> Object:
    return _messages(text("This is a simple prompt for testing."))


async def with_arguments(_call: ToolCall, given: Mapping[str, Any]) -> Object:
    return _messages(text(f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'"))


async def with_resource(_call: ToolCall, given: Mapping[str, Any]) -> Object:
    resource = embedded(str(given.get("resourceUri")), "text/plain", "Embedded resource content for testing.")
    return _messages(resource, text("Please process the embedded resource above."))


async def with_image(_call: ToolCall, _arguments: Mapping[str, Any]) -> Object:
    return _messages(IMAGE, text("Please analyze the image above."))


async def asking_prompt(call: ToolCall, _arguments: Mapping[str, Any]) -> Object:
    request = form("What context should the prompt use?", {"context": {"type": "string"}}, ["context"])
    reply = await call.ask("user_context", "elicitation/create", request)
    return _messages(text(json.dumps(reply)))


PROMPTS: Final = {
    "test_simple_prompt": ((), simple_prompt),
    "test_prompt_with_arguments": (("arg1", "arg2"), with_arguments),
    "test_prompt_with_embedded_resource": (("resourceUri",), with_resource),
    "test_prompt_with_image": ((), with_image),
    "test_input_required_result_prompt": ((), asking_prompt),
}


def offer() -> Offer:
    tasks = FixtureTasks()
    tools = [
        Tool(name, {"name": name, "description": name, "inputSchema": {"type": "object"}}, perform)
        for name, perform in {**PERFORMED, **performed(tasks)}.items()
    ]
    prompts = {
        name: Prompt(
            {"name": name, "description": name, "arguments": [{"name": each, "required": True} for each in arguments]},
            get,
        )
        for name, (arguments, get) in PROMPTS.items()
    }
    return Offer("fixture", "1", "fixtures", {tool.name: tool for tool in tools}, FixtureResources(), prompts, tasks)


async def serve() -> None:
    endpoint = McpEndpoint(McpServer(offer()), max_body=1_000_000)
    draining = Draining()

    def application(exchange: Exchange) -> Any:
        guard = LoopbackGuard(lambda passed: endpoint(passed, draining), token=TOKEN, host="127.0.0.1", port=port)
        exchange.headers[b"authorization"] = [f"Bearer {TOKEN}".encode()]  # the kit cannot send one
        return guard(exchange)

    connections = ListenerState(application, EventLimiter(logging.getLogger("fixture"), 1))
    server = await asyncio.get_running_loop().create_server(connections.connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}/mcp", flush=True)
    await server.serve_forever()


TOKEN: Final = "fixture-token-of-the-kit"

if __name__ == "__main__":
    asyncio.run(serve())
