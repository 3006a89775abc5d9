"""Daemons with the bridge, and messages for them."""

import contextlib
import itertools
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.bridging import NO_ERROR
from tests.support.daemons import Daemon, Home, UnixClient, wait_for

MAP = ("--bridge-agent", "asker=ops", "--bridge-agent", "helper=worker")


SHORT = 20.0  # seconds: the machine is shared


@contextlib.contextmanager
def daemons(root: Path, *starts: tuple[str, ...]) -> Iterator[list[Daemon]]:
    """Daemons (name, flags…) that share the embedded broker and know each other."""
    home = Home(root)
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(Daemon(home, name, *flags)) for name, *flags in starts]
        names = {daemon.name for daemon in made}
        wait_for(lambda: all(daemon.knows(*(names - {daemon.name})) for daemon in made), SHORT, "presence")
        yield made


def messages(daemon: Daemon, name: str, count: int, query: str = "") -> list[dict[str, Any]]:
    """The next `count` events of a format's stream."""
    with contextlib.closing(daemon.stream(f"/v1/bridge/{name}/stream{query}", SHORT)) as stream:
        found = list(itertools.islice(stream, count))
    assert len(found) == count, f"the stream ended after {found}"
    return found


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def link(agent: str, following: str | None, number: int, parent: str | None = None, **more: Any) -> dict[str, Any]:
    """A message of a sentient chain."""
    return {
        "message_id": more.pop("message_id", f"msg-{agent}-{uuid.uuid4()}"),
        "timestamp": {"executed_at": now(), "timezone": "UTC"},
        "agent": {"name": agent, "type": "governance"},
        "input": {"source": "user", "content": f"do {number}"},
        "output": {"content": f"words of {agent}", "content_type": "plan"},
        "next_agent": {"name": following, "reason": "it is next"},
        "status": {"code": more.pop("code", "success"), "message": f"{agent} is done"},
        "error": NO_ERROR,
        "metadata": {
            "session_id": more.pop("session", "session-1"),
            "request_id": more.pop("request", "req-1"),
            "sequence_number": number,
            "parent_message_id": parent,
        },
        "resources": {"source_refs": [], "storage_refs": [], "derived_refs": []},
        "audit": {"compliance_notes": "none", "governance_files_consulted": [], "reasoning": "because"},
        **more,
    }


def query(sender: str, to: str, **more: Any) -> dict[str, Any]:
    """A message of AgentOS; agents are mapped to peers by MAP."""
    return {
        "id": f"msg-{uuid.uuid4()}",
        "timestamp": now(),
        "version": "1.0.0",
        "from": {"agentId": sender, "instanceId": "one", "role": "analyst"},
        "to": {"agentId": to, "instanceId": "one", "role": "analyst"},
        "type": "query",
        "payload": {"content": {"question": "how many?"}, "format": "json", "encoding": "utf-8", "language": "en"},
        "context": {
            "sessionId": "s-1",
            "conversationId": "c-1",
            "requestId": "r-1",
            "environment": "test",
            "timezone": "UTC",
            "locale": "en",
        },
        "evidence": {"sources": [], "confidence": 0, "verification": []},
        "priority": "normal",
        "ttl": 60,
        "retryCount": 0,
        **more,
    }


INPUT = {
    "context": {"feature_id": "005-user-auth", "workflow": "specify", "iteration": 1},
    "paths": {"feature_root": "specs/005-user-auth", "spec": "spec.md"},
    "task": {"action": "create_spec", "params": {"depth": "full"}},
    "prior_context": ["earlier notes"],
}


REPLY = {"thought": "I think", "status": "success", "data": {"names": ["A", "B"]}, "message": "two names"}


def put_artifact(daemon: Daemon, work_id: str, name: str, content: bytes) -> str:
    """Store `content`; its URI."""
    client = UnixClient(daemon.socket_path, SHORT)
    try:
        client.request("PUT", f"/v1/artifacts/{work_id}/{name}", content)
        response = client.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        assert response.status in (200, 201), answer
    finally:
        client.close()
    return str(answer["uri"])


OUTPUT = {
    "success": True,
    "summary": "the spec is written",
    "artifacts": [{"path": "spec.md", "operation": "create", "content": "# Spec\n"}],
    "notes": ["mind the tests"],
    "recommendation": "proceed",
}
