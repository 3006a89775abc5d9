"""The steps of `aghctl demo`: two daemons and one work between them; each step checks the resulting state."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator

from aghbus.cli.app.errors import AnswerIsNo
from aghbus.client.api import Api
from aghbus.client.errors import Unexpected
from aghbus.client.http import quote
from aghbus.client.locate import locations
from aghbus.protocol.agh.identifiers import subject_for
from aghbus.protocol.base.annotations import Any
from aghbus.testing.sandbox import Sandbox, eventually

Scene = tuple[str, Callable[[], str]]

PATIENCE = 10.0
"""Seconds for a message to go from one daemon to the other, on a busy machine; milliseconds on an idle one."""
TIMEOUT = 10.0
"""Seconds for each step with the demo's own daemons and NATS server."""
ASKER, WORKER = "demo-ops", "demo-worker"
TASK = "Run the migration smoke test"
RESULT = {"passed": True, "tests": 42}


class Demo:
    """Two daemons and one work between them. Run `scenes` in order; each returns a description of its result."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._work = self._broker_dir = ""
        self._ops: Api
        self._worker: Api

    def scenes(self) -> Iterator[Scene]:
        """Title and action of each step; an action raises ClientError when the result is not as expected."""
        yield "two daemons on an embedded broker", self._start
        yield "discovery: who can test.run?", self._discover
        yield "work: opened, and delivered to the worker's inbox", self._open
        yield "the worker accepts and reports progress", self._progress
        yield "needs_input: a question, and its answer", self._question
        yield "completion: the initiator gets the result", self._complete
        yield "a duplicate: the first message is published again", self._duplicate

    def _start(self) -> str:
        started = self._sandbox.peers(ASKER, WORKER, capabilities={WORKER: ["test.run", "code.patch"]})
        self._broker_dir = locations(ASKER, started[0].env).broker_dir
        self._ops, self._worker = (Api(peer.endpoint, TIMEOUT) for peer in started)
        return f"{ASKER} and {WORKER} are ready and share an embedded broker"

    def _discover(self) -> str:
        body = {"query": "test.run", "wait": PATIENCE, "first": True}
        found = self._ops.post("/v1/whois", body, wait=PATIENCE)["peers"]
        _must([peer["peer_id"] for peer in found] == [WORKER], f"{WORKER} did not answer")
        return f"{WORKER} answered in {found[0]['rtt_ms']:.0f} ms: {', '.join(found[0]['card']['capabilities'])}"

    def _open(self) -> str:
        sent = self._ops.post("/v1/works", {"to": WORKER, "text": TASK})
        self._work = str(sent["work_id"])
        item = self._worker.post("/v1/inbox/next", {"wait": PATIENCE, "ack": True}, wait=PATIENCE)["item"]
        _must(item is not None and item["message"]["work_id"] == self._work, "the work did not reach the inbox")
        return f"{self._work}: “{TASK}”"

    def _progress(self) -> str:
        self._step(self._worker, "accept")
        self._step(self._worker, "update", message="12 of 42 tests")
        self._until(self._ops, "working")
        return f"{ASKER} sees: working, “12 of 42 tests”"

    def _question(self) -> str:
        self._step(self._worker, "need-input", message="which branch?")
        self._until(self._ops, "needs_input")
        self._step(self._ops, "say", message="main")
        self._until(self._worker, "working")
        return "“which branch?” – “main” – and the work continues"

    def _complete(self) -> str:
        self._step(self._worker, "complete", message="all green", result=RESULT, artifacts=[{"uri": "report.xml"}])
        self._until(self._ops, "completed")
        work = self._detail(self._ops)["work"]
        _must(work["result"] == RESULT, "the result that arrived is not the one that was sent")
        return f"completed with {json.dumps(work['result'])}"

    def _duplicate(self) -> str:
        before = (self._worker.get("/v1/inbox")["counts"], len(self._detail(self._worker)["history"]))
        opening = self._detail(self._ops)["work"]["opening_id"]
        self._publish_again(opening)
        receipt = [("work", self._work), ("kind", "receipt"), ("direction", "in"), ("limit", 1000)]

        def answered() -> bool:
            bodies = [message["envelope"]["body"] for message in self._ops.get("/v1/messages", receipt)["messages"]]
            return any(body["status"] == "duplicate" and body["for_id"] == opening for body in bodies)

        _must(eventually(answered, PATIENCE), "no receipt `duplicate` came")
        after = (self._worker.get("/v1/inbox")["counts"], len(self._detail(self._worker)["history"]))
        _must(after == before, "the duplicate changed the worker's inbox or history")
        _must(self._detail(self._worker)["work"]["state"] == "completed", "the duplicate changed the work")
        return f"{WORKER} answered with a receipt `duplicate`; its inbox and the work are as they were"

    def _publish_again(self, message_id: str) -> None:
        """Publish the stored envelope again, as a sender's retry or a broker's redelivery would."""
        envelope = self._ops.get(f"/v1/messages/{quote(message_id)}")["envelope"]
        folder = self._broker_dir
        with open(f"{folder}/broker.json", encoding="ascii") as file:  # noqa: PTH123 - pathlib is slow to load
            port = int(json.load(file)["port"])
        with open(f"{folder}/token", encoding="ascii") as file:  # noqa: PTH123 - as above
            token = file.read().strip()
        subject = subject_for(envelope["workspace_id"], envelope["channel"], envelope["to"])
        raw_publish(port, token, subject, json.dumps(envelope).encode())

    def _step(self, api: Api, verb: str, **body: Any) -> None:
        api.post(f"/v1/works/{quote(self._work)}/{verb}", body)

    def _detail(self, api: Api) -> dict[str, Any]:
        return api.get(f"/v1/works/{quote(self._work)}")

    def _until(self, api: Api, state: str) -> None:
        reached = eventually(lambda: self._detail(api)["work"]["state"] == state, PATIENCE)
        _must(reached, f"the work did not become {state}")


def _must(held: bool, otherwise: str) -> None:
    if not held:
        raise AnswerIsNo(otherwise, "see docs/cli.md, `aghctl demo`")


def raw_publish(port: int, token: str, subject: str, payload: bytes) -> None:
    """Publish `payload` on the NATS server at 127.0.0.1:`port`; returns when the server has it. Raises Unexpected or OSError.

    Speaks the text protocol itself (docs.nats.io, "NATS Client Protocol"): INFO from the server, then CONNECT, PUB and PING,
    and PONG when the server has processed all of it.
    """
    options = json.dumps({"verbose": False, "pedantic": False, "auth_token": token, "lang": "python", "version": "0"})
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection, connection.makefile("rwb") as stream:
        stream.readline()  # INFO: nothing in it is needed
        stream.write(f"CONNECT {options}\r\nPUB {subject} {len(payload)}\r\n".encode() + payload + b"\r\nPING\r\n")
        stream.flush()
        for line in stream:
            if line.startswith(b"PONG"):
                return
            if line.startswith(b"-ERR"):
                raise Unexpected(f"the demo's broker refused: {line.decode('utf-8', 'replace').strip()}")
    raise Unexpected("the demo's broker closed the connection")
