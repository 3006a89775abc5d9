"""A stand-in of the models' APIs on a local port: `/v1/messages` as Claude Code calls it, `/v1/responses` as Codex does.

No model runs. A script plays one: it gets what started a turn, yields the tools that it calls, gets their results, and returns its
last words. What the hosts send is kept, so that a test can say what a model would have read.
"""

import json
import re
import threading
from collections.abc import Callable, Generator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol, Self

SERVER = "aghbus"
"""The name under which the hosts know the MCP server."""
_FENCED = re.compile(r"\[([0-9a-f]{16}) data from .*?\[\1 end\]", re.DOTALL)
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_TASK_ENDED = re.compile(r"<task-notification>.*?<summary>(.*?)</summary>", re.DOTALL)


class Use(NamedTuple):
    """A call of a tool of the bus."""

    tool: str
    arguments: dict[str, Any]


Turn = Generator[Use, Any, str]
Script = Callable[[str], Turn]


class Asked(NamedTuple):
    """What one request of a host asks a model for."""

    conversation: str
    tools: frozenset[str]
    results: dict[str, str]
    prompt: str


class Dialect(Protocol):
    """The API of one vendor."""

    path: str

    def read(self, headers: dict[str, str], body: dict[str, Any]) -> Asked:
        """What a request asks for; its `results` are those of tool calls by the id of the call."""

    def call(self, call_id: str, use: Use) -> bytes:
        """A stream of events with one call of a tool."""

    def text(self, text: str) -> bytes:
        """A stream of events with a text that ends the turn."""


class Model:
    """One model with its script, over all conversations of one host."""

    def __init__(self, dialect: Dialect, script: Script) -> None:
        self.dialect = dialect
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.prompts: list[str] = []
        self.tools: frozenset[str] = frozenset()
        self.results: list[tuple[str, Any]] = []
        self.events: list[str] = []  # prompts, "· tool" for each call, and texts that end a turn
        self.finished = 0  # turns
        self.failures: list[Exception] = []  # of the script
        self._calls: dict[str, tuple[Turn, Use]] = {}
        self._lock = threading.Lock()

    def answer(self, headers: dict[str, str], body: dict[str, Any]) -> bytes:
        with self._lock:
            self.requests.append(body)
            asked = self.dialect.read(headers, body)
            if not asked.tools:
                return self.dialect.text("none")  # a request of the host for itself, such as a title
            self.tools |= asked.tools
            return self._next(*self._resumed(asked))

    def _resumed(self, asked: Asked) -> tuple[Turn, Any]:
        """The turn that a request continues, and the result that its tool gave; a new turn otherwise."""
        for call_id, text in asked.results.items():
            if call_id in self._calls:
                turn, use = self._calls.pop(call_id)
                result = _decoded(text)
                self.results.append((use.tool, result))
                return turn, result
        self.prompts.append(asked.prompt)
        self.events.append(asked.prompt)
        return self.script(asked.prompt), None

    def _next(self, turn: Turn, result: Any) -> bytes:
        try:
            use = turn.send(result)
        except StopIteration as end:
            return self._end(end.value)
        except Exception as error:
            self.failures.append(error)
            return self._end(f"failed: {error!r}")
        call_id = f"call_{len(self.requests)}"
        self._calls[call_id] = turn, use
        self.events.append(f"· {use.tool}")
        return self.dialect.call(call_id, use)

    def _end(self, text: str) -> bytes:
        self.finished += 1
        self.events.append(text)
        return self.dialect.text(text)

    def read_unfenced(self) -> str:
        """All that the model was given to read, without what stood inside of a fence."""
        return "\n".join(_FENCED.sub("", text) for request in self.requests for text in _strings(request))


class ModelApi:
    """The HTTP server. A context manager: it serves from entry to exit."""

    def __init__(self, *models: Model) -> None:
        self._models = {model.dialect.path: model for model in models}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        models = self._models

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {key.lower(): value for key, value in self.headers.items()}
                model = models.get(self.path.partition("?")[0])
                if model is None:
                    self._respond(404, b"{}", "application/json")
                else:
                    self._respond(200, model.answer(headers, json.loads(raw)), "text/event-stream")

            def do_GET(self) -> None:
                self._respond(404, b"{}", "application/json")

            do_HEAD = do_GET

            def _respond(self, status: int, content: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: the test keeps the requests."""

        return Handler


class Messages:
    """Claude's API."""

    path = "/v1/messages"
    _PREFIX = f"mcp__{SERVER}__"

    def read(self, headers: dict[str, str], body: dict[str, Any]) -> Asked:
        names = (str(tool.get("name")) for tool in body.get("tools", ()))
        tools = frozenset(each.removeprefix(self._PREFIX) for each in names if each.startswith(self._PREFIX))
        last = next(each["content"] for each in reversed(body["messages"]) if each["role"] == "user")
        blocks = [{"type": "text", "text": last}] if isinstance(last, str) else last
        results = {each["tool_use_id"]: _text_of(each["content"]) for each in blocks if each["type"] == "tool_result"}
        prompt = "\n".join(each["text"] for each in blocks if each["type"] == "text")
        said = _REMINDER.sub("", prompt).strip() or "".join(_TASK_ENDED.findall(prompt)[-1:])
        return Asked(headers.get("x-claude-code-session-id", ""), tools, results, said)

    def call(self, call_id: str, use: Use) -> bytes:
        block = {"type": "tool_use", "id": call_id, "name": self._PREFIX + use.tool, "input": {}}
        return self._stream(block, {"type": "input_json_delta", "partial_json": json.dumps(use.arguments)}, "tool_use")

    def text(self, text: str) -> bytes:
        return self._stream({"type": "text", "text": ""}, {"type": "text_delta", "text": text}, "end_turn")

    def _stream(self, block: dict[str, Any], delta: dict[str, Any], reason: str) -> bytes:
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "standin", "content": []}
        return _events(
            {"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        )


class Responses:
    """The API that Codex calls."""

    path = "/v1/responses"
    _NAMESPACE = f"mcp__{SERVER}"

    def read(self, headers: dict[str, str], body: dict[str, Any]) -> Asked:
        spaces = (tool for tool in body.get("tools", ()) if tool.get("name") == self._NAMESPACE)
        tools = frozenset(str(tool["name"]) for space in spaces for tool in space["tools"])
        items = body["input"]
        results = {
            each["call_id"]: _text_of(each["output"]) for each in items if each.get("type") == "function_call_output"
        }
        said = [_text_of(each["content"]) for each in items if each.get("role") == "user"]
        return Asked(headers.get("thread-id", ""), tools, results, said[-1] if said else "")

    def call(self, call_id: str, use: Use) -> bytes:
        item = {"type": "function_call", "id": "fc_" + call_id, "call_id": call_id, "status": "completed"}
        item |= {"namespace": self._NAMESPACE, "name": use.tool, "arguments": json.dumps(use.arguments)}
        return self._stream(item)

    def text(self, text: str) -> bytes:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return self._stream({"type": "message", "id": "msg_1", "role": "assistant", "content": content})

    def _stream(self, item: dict[str, Any]) -> bytes:
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return _events(
            {"type": "response.created", "response": {"id": "resp_1"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "usage": usage}},
        )


def _events(*events: dict[str, Any]) -> bytes:
    return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)


def _text_of(content: Any) -> str:
    """The text of a content: a string, or a list of blocks with texts."""
    if isinstance(content, str):
        return content
    return "\n".join(str(each.get("text", "")) for each in content)


def _decoded(text: str) -> Any:
    """The JSON in the result of a tool, which a host may have put words before; the text itself when there is none."""
    start = text.find("{")
    try:
        return json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else text
    except ValueError:
        return text


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for each in value.values():
                yield from _strings(each)
        case list():
            for each in value:
                yield from _strings(each)
