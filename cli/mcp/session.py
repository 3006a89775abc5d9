"""What the relay knows of its host: who it is, and what it said that matters for waking it.

Facts come from the environment of the process and from the messages that pass. Nothing of them is stored or logged but name and
version of the host.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from aghbus.cli.mcp.messages import VERSION, Message, error, params_of, parse
from aghbus.protocol.base.annotations import Any

INBOX = "aghbus://inbox"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
CODEX_METADATA = "x-codex-turn-metadata"
INVALID_PARAMS = -32602
TASK_ENDED = ("completed", "failed", "cancelled")
OPENING = ("initialize", "server/discover")
"""A host that only asks for health sends no more than these: it is not told of messages."""
_MAX_LABEL = 100  # characters of a name or version


class HostSession:
    """One session of a host. `thread_id` is that of Codex; `subscribed`: a legacy host wants to know when the inbox changes."""

    def __init__(
        self,
        env: Mapping[str, str],
        on_tool: Callable[[str, bool], None],
        on_task: Callable[[str, bool], None],
        on_change: Callable[[], None],
    ) -> None:
        """`on_tool` is called with a tool's name, False as its call starts and True once it was answered; `on_task` when the
        host got the state of a task, with the id of its work and whether it has ended; `on_change` when the session begins
        after its opening, and when the facts change by which the host can be woken."""
        self.env = env
        self.host = ""
        self.version = ""
        self.thread_id = ""
        self.subscribed = False
        self._on_tool = on_tool
        self._on_task = on_task
        self._on_change = on_change
        self._started = False

    def received(self, message: Message) -> bytes | None:
        """Take note of a message of the host. The answer, if the relay itself has to give it."""
        before = (self._started, self.thread_id, self.subscribed)
        self._started = self._started or message.get("method") not in OPENING
        params = params_of(message)
        meta = params.get("_meta")
        meta = meta if isinstance(meta, dict) else {}
        self._note_host(params.get("clientInfo") or meta.get(CLIENT_INFO))
        answer = self._subscription(message, params, modern=VERSION in meta)
        if message.get("method") == "tools/call":
            self._note_thread(meta.get(CODEX_METADATA))
            self._on_tool(str(params.get("name")), False)
        if before != (self._started, self.thread_id, self.subscribed):
            self._on_change()
        return answer

    def answered(self, message: Message, answer: bytes) -> None:
        """The host got the answer to a message; of one that came as a stream, `answer` is empty."""
        method, tool = message.get("method"), params_of(message).get("name")
        if method == "tasks/get" or (method == "tools/call" and tool == "open_work"):
            self._note_task((parse(answer) or {}).get("result"))
        if method == "tools/call":
            self._on_tool(str(tool), True)

    def _note_task(self, result: Any) -> None:
        if isinstance(result, dict) and isinstance(result.get("taskId"), str):
            self._on_task(result["taskId"], result.get("status") in TASK_ENDED)

    def _note_host(self, info: Any) -> None:
        if isinstance(info, dict) and isinstance(info.get("name"), str):
            version = info.get("version")
            self.host = info["name"][:_MAX_LABEL]
            self.version = version[:_MAX_LABEL] if isinstance(version, str) else ""

    def _note_thread(self, metadata: Any) -> None:
        thread_id = metadata.get("thread_id") if isinstance(metadata, dict) else None
        if isinstance(thread_id, str) and thread_id.replace("-", "").isalnum() and thread_id[0] != "-":
            self.thread_id = thread_id

    def _subscription(self, message: Message, params: Message, *, modern: bool) -> bytes | None:
        """The daemon keeps no stream to a legacy host, so that its subscriptions are the relay's."""
        method = message.get("method")
        if modern or method not in ("resources/subscribe", "resources/unsubscribe") or "id" not in message:
            return None
        if params.get("uri") != INBOX:
            return error(message["id"], INVALID_PARAMS, f"only {INBOX} can be subscribed to")
        self.subscribed = method == "resources/subscribe"
        return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}).encode()


def with_subscriptions(body: bytes) -> bytes:
    """The answer to `initialize`, with the capability that `HostSession` adds."""
    try:
        answer = json.loads(body)
        answer["result"]["capabilities"]["resources"]["subscribe"] = True
    except (ValueError, KeyError, TypeError):
        return body  # an error
    return json.dumps(answer).encode()


def inbox_changed() -> bytes:
    """The notification for a legacy host that subscribed."""
    message = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": INBOX}}
    return json.dumps(message).encode()
