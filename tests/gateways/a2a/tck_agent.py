"""The agent that A2A's conformance kit (a2a-tck) asks for, as a command under `aghctl serve`.

What it does depends on the prefix of the `messageId` of the kit's latest message, which the gateway keeps in `ext`.
"""

import json
import os
import sys
import time
from typing import Any

from aghbus.client import Client, Endpoint

TEXT = {"type": "text", "artifact_id": "out", "title": "output"}
FILE = {"type": "file", "artifact_id": "out", "title": "output", "name": "output.txt", "media_type": "text/plain"}
STREAMED = {
    "tck-stream-001": "Stream hello from TCK",
    "tck-stream-003": "Stream task lifecycle",
    "tck-stream-ordering-001": "Ordered output",
    "tck-stream-artifact-text": "Streamed text content",
    "tck-stream-artifact-chunked": "chunk-1 chunk-2",
}
LONG_SECONDS = 8.0
"""For `test-resubscribe-message-id`: longer than the kit waits for a stream."""


def latest_message_id(client: Client, work_id: str, opening: dict[str, Any]) -> str:
    """The `messageId` of the client's latest message in the task."""
    said = client.messages(work_id=work_id, kinds=frozenset({"say"}), directions=frozenset({"in"}), limit=1000).messages
    envelope = json.loads(bytes(said[-1].envelope)) if said else opening
    return str((envelope.get("ext") or {}).get("aghbus.a2a", {}).get("message_id", ""))


def main() -> None:
    work = json.load(sys.stdin)
    work_id = work["work_id"]
    with Client(Endpoint(path=os.environ["AGHD_API_SOCKET"])) as client:
        message_id = latest_message_id(client, work_id, work["envelope"])

        def step(verb: Any, message: str | None = None, artifact: dict[str, Any] | None = None) -> None:
            client.act_on_work(work_id, verb, message=message, artifacts=None if artifact is None else [artifact])

        def prefixed(*prefixes: str) -> str | None:
            return next((one for one in prefixes if message_id.startswith(one)), None)

        if prefixed("tck-input-required", "tck-multi-turn"):
            step("need-input", "more is needed")
        elif prefixed("tck-auth-required"):
            client.act_on_work(work_id, "need-input", message="log in", ext={"aghbus.auth_required": True})
        elif prefixed("tck-reject"):
            step("reject", "rejected")
        elif prefixed("tck-artifact-file-url"):
            step("complete", None, {**FILE, "uri": "https://example.com/output.txt"})
        elif prefixed("tck-artifact-file"):
            step("complete", None, {**FILE, "content": "b3V0cHV0", "size": 6})
        elif prefixed("tck-artifact-text"):
            step("complete", None, {**TEXT, "text": "Generated text content"})
        elif prefixed("tck-artifact-data"):
            step("complete", None, {**TEXT, "type": "data", "data": {"key": "value", "count": 42}})
        elif prefixed("tck-message-response"):
            answer = {"aghbus.a2a": {"message": True}}
            client.act_on_work(work_id, "complete", message="Direct message response", ext=answer)
        elif prefixed("tck-stream-artifact-file"):
            step("update", None, {**FILE, "content": "b3V0cHV0", "size": 6})
            step("complete")
        elif (prefix := prefixed(*STREAMED)) is not None:
            step("update", None, {**TEXT, "text": STREAMED[prefix]})
            step("complete")
        elif prefixed("test-resubscribe-message-id"):
            step("update", "working")
            time.sleep(LONG_SECONDS)
            step("complete")
        else:
            step("complete", "Hello from TCK")


if __name__ == "__main__":
    main()
