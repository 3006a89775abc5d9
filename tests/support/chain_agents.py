"""Agents that run the nodes of a chain, and requests to start and follow one."""

import threading
import time
from collections.abc import Callable
from typing import Any

from tests.support.daemons import Daemon
from tests.support.seed_examples import examples

Envelope = dict[str, Any]
REACH_WAIT = 60.0  # seconds


Answer = Callable[["Agent", Envelope, int], None]


class Agent:
    """An agent behind a daemon: a thread that takes each message and lets `answer(agent, envelope, seq)` deal with it."""

    def __init__(self, daemon: Daemon, answer: Answer) -> None:
        self.daemon = daemon
        self.taken: list[Envelope] = []
        self.failure: BaseException | None = None
        self._answer = answer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def complete(self, envelope: Envelope, message: str = "done", **result: Any) -> None:
        self.daemon.post(f"/v1/works/{envelope['work_id']}/complete", result=result, message=message)

    def fail(self, envelope: Envelope, message: str) -> None:
        self.daemon.post(f"/v1/works/{envelope['work_id']}/fail", message=message)

    def texts(self) -> list[str]:
        return [envelope["body"]["text"] for envelope in self.taken]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                item = self.daemon.post("/v1/inbox/next", wait=0.2, ack=True)["item"]
                if item is not None:
                    envelope = item["message"]["envelope"]
                    self.taken.append(envelope)
                    self._answer(self, envelope, item["seq"])
        except BaseException as error:
            self.failure = error

    def __enter__(self) -> "Agent":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert self.failure is None, self.failure


def chain(nodes: dict[str, Any], *edges: tuple[str, str, str | None], start: str = "a", max_steps: int = 10) -> Any:
    """A chain file as JSON; edges are (from, to, when)."""
    listed = [{"from": source, "to": target, **({"when": when} if when else {})} for source, target, when in edges]
    return {"name": "test", "start": start, "max_steps": max_steps, "nodes": nodes, "edges": listed}


def begin(ops: Daemon, document: Any, **more: Any) -> str:
    """Start a run; its id."""
    return str(ops.post("/v1/chains/runs", chain=document, **more)["run_id"])


def show(ops: Daemon, run_id: str) -> dict[str, Any]:
    """The run as it is now."""
    found: dict[str, Any] = ops.get(f"/v1/chains/runs/{run_id}")
    return found


def reach(ops: Daemon, run_id: str, *states: str) -> dict[str, Any]:
    """The run once it is in one of these states."""
    deadline = time.monotonic() + REACH_WAIT
    run = show(ops, run_id)
    while run["state"] not in states:
        left = deadline - time.monotonic()
        assert left > 0, f"waited {REACH_WAIT} s for {run_id} to be {states}: {run['state']}"
        run = ops.request(
            "GET", f"/v1/chains/runs/{run_id}?since={run['version']}&wait={min(left, 10):.3f}", timeout=60
        )
    return run


def asked(question: str) -> dict[str, Any]:
    """A query of AgentOS as a template, on the seed's own example."""
    value = next(example.value for example in examples("agentos"))
    made = {
        **value,
        "id": "msg-{{run.uuid}}",
        "timestamp": "{{run.time}}",
        "from": {"agentId": "asker", "instanceId": "one", "role": "analyst"},
        "to": {"agentId": "helper", "instanceId": "one", "role": "analyst"},
        "type": "query",
        "payload": {"content": {"question": question}, "format": "json", "encoding": "utf-8", "language": "en"},
        "context": {
            "sessionId": "s-{{run.id}}",
            "conversationId": "c-{{run.id}}",
            "requestId": "r-{{run.step}}",
            "environment": "test",
            "timezone": "UTC",
            "locale": "en",
        },
    }
    made.pop("replyTo", None)
    return made


def handed(plan: str) -> dict[str, Any]:
    """The first message of a sentient chain as a template, on the seed's own example."""
    return {
        **next(example.value for example in examples("sentient")),
        "message_id": "msg-{{run.uuid}}",
        "timestamp": {"executed_at": "{{run.time}}", "timezone": "UTC"},
        "agent": {"name": "asker", "type": "governance"},
        "input": {"source": "chain", "content": "{{input}}"},
        "output": {"content": plan, "content_type": "plan"},
        "next_agent": {"name": "helper", "reason": "it is next"},
        "status": {"code": "success", "message": "asked"},
        "metadata": {
            "session_id": "s-{{run.id}}",
            "request_id": "r-{{run.id}}",
            "sequence_number": 1,
            "parent_message_id": None,
        },
        "resources": {"source_refs": [], "storage_refs": [], "derived_refs": []},
        "audit": {"compliance_notes": "none", "governance_files_consulted": [], "reasoning": "because"},
    }
