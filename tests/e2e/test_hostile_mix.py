"""A hostile peer and a hostile local client at once, from one seed: nothing of it is a defect, and good work goes on beside it."""

import http.client
import json
import random
import socket
import time
from pathlib import Path
from typing import Any

from nats import connect as nats_connect
from nats.aio.msg import Msg

from aghbus.protocol.agh.identifiers import direct_id, subject_for
from tests.support.daemons import Daemon, Home, HttpError, wait_for
from tests.support.foreign import Foreign
from tests.support.natsutil import NatsServer

QUICK = ("--retry-first", "100ms", "--retry-ceiling", "300ms")
ROUNDS = 30
PER_ROUND = 50  # envelopes, and a few requests
NAMES = ("mallory", "ops", "worker", "nobody", "x" * 128, "mal@lory", "", "UPPER")
WORKS = ("work_1", "work_2", "work_3", "w/4", "work_" + "5" * 200)
THREADS = ("thread_one", "thread_two", "thread_!", "thread_" + "a" * 96)
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 2**63, 2**70, 1e300, "", " ", "\x00", "\x1b[2J", "é" * 300, "\ud800", "a\nb", [], {}, [[]],
    {"a": {"b": [1]}}, "working", "accepted", "x" * 70_000,
)  # fmt: skip
STATUS = ("accepted", "rejected", "duplicate", "expired", "unsupported", "canceled", "lost")
STATES = ("submitted", "working", "needs_input", "completed", "failed", "canceled", "gone")
REASONS = (None, "busy", "duplicate", "expired", "unsupported_kind", "internal", "nonsense")
FIELDS = (
    "protocol", "id", "workspace_id", "kind", "channel", "surface", "thread_id", "direct_id", "from", "to", "work_id", "reply_to",
    "trace_id", "causation_id", "ts", "expires_at", "body", "proof", "ext",
)  # fmt: skip


class Vandal:
    """Everything that it does comes from its random numbers."""

    def __init__(self, peer: Foreign, rng: random.Random) -> None:
        self.peer = peer
        self.rng = rng
        self.sent: list[tuple[str, bytes]] = []

    def body(self, kind: str) -> dict[str, Any]:
        pick = self.rng.choice
        card = {
            "peer_id": "mallory",
            "profiles_supported": [],
            "capabilities": [pick(("a", " ", "b" * 2000))],
            "artifacts_supported": [],
            "trust_modes_supported": [],
        }
        bodies: dict[str, dict[str, Any]] = {
            "greet": {"peer_card": card},
            "whois": pick(
                ({"type": "request", "query": pick(("", "ops", "\x00"))}, {"type": "response", "peer_card": card})
            ),
            "say": {"text": pick(("hello", "", "\x1b]0;x\x07", "y" * 200_000)), "artifacts": pick(([], [1], None))},
            "capability": {"capability": {"id": "c", "summary": "s", "outcome": "o", "digest": "sha256:" + "0" * 64}},
            "receipt": {"for_id": pick(("m", "", "req-1")), "status": pick(STATUS), "reason_code": pick(REASONS)},
            "trace": {"state": pick(STATES), "result": pick(ODD), "artifact_refs": pick(([], None, [None]))},
        }
        return bodies[kind]

    def envelope(self) -> bytes:
        """An envelope with up to three random faults, or none."""
        pick = self.rng.choice
        kind = pick(("greet", "whois", "say", "capability", "receipt", "trace"))
        fields: dict[str, Any] = {
            "ext": pick(({}, {"aghbus.instance": "m", "aghbus.joined": True}, {"agh.include": ["x"]}))
        }
        if kind not in ("greet", "whois"):
            to = pick(("ops", "ops", "worker", None))
            fields |= {"to": to, "work_id": pick(WORKS[:3]), "surface": "thread", "thread_id": pick(THREADS[:2])}
            if self.rng.random() < 0.3:
                room = direct_id("ws_local", "default", "mallory", "ops")
                fields |= {"surface": "direct", "thread_id": None, "direct_id": pick((room, "direct_" + "a" * 32))}
        document = self.peer.envelope(kind, self.body(kind), **fields)
        for _ in range(pick((0, 0, 0, 1, 1, 2, 3))):
            name = pick(FIELDS)
            document[name] = pick(
                (*ODD, *NAMES, *WORKS, *THREADS, int(time.time()) + pick((-(10**6), -400, 400, 10**6)))
            )
        raw = json.dumps(document).encode()
        return raw if self.rng.random() < 0.95 else raw[: self.rng.randrange(len(raw))]

    async def publish(self, count: int) -> None:
        """So many messages: new ones, old ones again, answers to subjects that they name; to subjects that fit or do not."""
        client = self.peer.client
        for _ in range(count):
            if self.sent and self.rng.random() < 0.25:
                subject, raw = self.rng.choice(self.sent)
            else:
                subject = subject_for(
                    "ws_local", self.rng.choice(("default", "other")), self.rng.choice((None, "ops", "worker"))
                )
                raw = self.envelope()
                self.sent.append((subject, raw))
            reply = self.rng.choice(
                ("", "", "_INBOX.mallory.1", "agh.network.v0.ws_local.default.broadcast", "_INBOX." + "x" * 300)
            )
            await client.publish(subject, raw, reply=reply)
        await client.flush()

    async def answer(self, message: Msg) -> None:
        """To what is directed at it: lies on the reply subject."""
        root, _, sequence = message.reply.rpartition(".")
        if not root:
            return
        for token in (sequence, "1", "0", "9" * 30, "9" * 5000, "\N{ARABIC-INDIC DIGIT ONE}", "-1", "x"):
            for raw in (b"", b"{", b'{"aghbus":"ack","id":"m","outcome":"committed"}', _lie(self.rng.choice(ODD))):
                if len(token) < 2000:
                    await self.peer.client.publish(f"{root}.{token}", raw)

    def request(self, daemon: Daemon) -> int:
        """One random request of a local client; its status."""
        pick = self.rng.choice
        paths = (
            "/v1/messages", "/v1/works", f"/v1/works/{pick(WORKS[:3])}/{pick(('accept', 'complete', 'fail', 'say', 'x'))}",
            "/v1/inbox/next", f"/v1/inbox/{pick((1, 2, 99, -1, 2**70, 'a'))}/{pick(('ack', 'nack', 'requeue'))}", "/v1/whois",
        )  # fmt: skip
        path = pick(paths)
        body: Any = {
            "/v1/messages": {
                "kind": pick(("say", "receipt", "trace", "greet")),
                "body": {"text": "t"},
                "work_id": pick(WORKS),
            },
            "/v1/works": {"to": pick(NAMES), "text": pick(("t", "")), "id": pick(("req-1", "req-2", None))},
            "/v1/inbox/next": {"ack": pick((True, False)), "visibility": pick((1, 0, 1e300, 60))},
            "/v1/whois": {
                "query": "",
                "wait": pick((0.1, -1, 1e9)),
                "first": True,
                "to": pick(("worker", "ops", "\x00")),
            },
        }.get(path, {})
        for _ in range(pick((0, 0, 1, 2))):
            body[
                pick(
                    ("id", "to", "body", "work_id", "thread_id", "direct", "expires_in", "ext", "lease", "message", "z")
                )
            ] = pick(ODD)
        if self.rng.random() < 0.1:
            body = pick(ODD)
        if self.rng.random() < 0.2:
            path += f"?since={pick((0, -1, 2**63, 2**70, 'x'))}&limit={pick((1, 0, 10**9))}&kind={pick(('say', '%00', '%ff'))}"
        try:
            daemon.request(pick(("POST", "POST", "GET", "PUT")), path, body, timeout=20)
        except HttpError as error:
            return error.status
        return 200


def _lie(value: Any) -> bytes:
    return json.dumps({"aghbus": "ack", "id": value, "outcome": "refused", "reason": value}).encode()


async def play(home: Home, server: NatsServer, seed: int, rounds: int) -> None:
    """`rounds` of attacks on one of two daemons that have work to do; raises AssertionError for the first defect."""
    rng = random.Random(seed)
    options = ("--nats", server.url, *QUICK)
    with Daemon(home, "worker", *options) as worker, Daemon(home, "ops", *options, "--observe") as ops:
        wait_for(lambda: ops.knows("worker"), 20, "presence")
        async with await nats_connect(server.url) as client:
            vandal = Vandal(Foreign(client, "mallory"), rng)
            await client.subscribe(subject_for("ws_local", "default", "mallory"), cb=vandal.answer)
            for number in range(rounds):
                await vandal.publish(PER_ROUND)
                statuses = {vandal.request(ops) for _ in range(8)}
                assert not {status for status in statuses if status >= 500}, (seed, number, statuses)
                if number % 10 == 0:
                    ops.post(
                        "/v1/messages", kind="say", body={"text": "answer me"}, to="mallory", thread_id="thread_one"
                    )
                    good_work(ops, worker, f"work_good_{number}")
        for daemon in (worker, ops):
            status = daemon.get("/v1/status")
            assert not status["counters"].get("internal_errors"), daemon.log.read_text()
            assert not status["counters"].get("link.CallbackFailed"), daemon.log.read_text()
            assert status["ready"], status["problems"]
            log = daemon.log.read_text()
            assert "Traceback" not in log, log
            assert "\x1b" not in log


def good_work(ops: Daemon, worker: Daemon, work_id: str) -> None:
    """One work from its opening to its end on both sides."""
    ops.post("/v1/works", to="worker", text="good", work_id=work_id)
    wait_for(lambda: _has(worker, work_id), 20, "good work to get through")
    worker.post(f"/v1/works/{work_id}/complete")
    wait_for(lambda: ops.state_of(work_id) == "completed", 20, "its end to get through")


def _has(daemon: Daemon, work_id: str) -> bool:
    try:
        return bool(daemon.state_of(work_id))
    except HttpError:
        return False


async def test_a_hostile_peer_and_a_hostile_client_break_nothing(tmp_path: Path, server: NatsServer) -> None:
    await play(Home(tmp_path), server, seed=12, rounds=ROUNDS)


def test_a_client_that_disconnects_in_the_middle_removes_no_message(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "ops") as ops:
        for _ in range(20):
            for path, body in (
                ("/v1/inbox/next", {"wait": 30}),
                ("/v1/whois", {"query": "", "wait": 30}),
                ("/v1/events", None),
            ):
                client = http.client.HTTPConnection("localhost")
                client.sock = _connected(ops)
                client.request(
                    "GET" if body is None else "POST",
                    path,
                    json.dumps(body) if body else None,
                    {"Content-Type": "application/json"},
                )
                client.close()
        ops.post("/v1/works", to="nobody", text="hello?", expires_in=1)
        item = ops.post("/v1/inbox/next", wait=20)["item"]  # a client that left before did not take it
        assert item["attempts"] == 1
        assert "Traceback" not in ops.log.read_text()


def _connected(daemon: Daemon) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(str(daemon.socket_path))
    return sock
