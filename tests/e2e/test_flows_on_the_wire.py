"""The flows of the protocol as a foreign peer sees them: raw envelopes in, raw envelopes out, one daemon between."""

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from aghbus.protocol.agh.identifiers import direct_id, subject_for
from tests.support.daemons import NO_RETRY, Daemon, Home, wait_for
from tests.support.foreign import Foreign, foreign_peer
from tests.support.natsutil import NatsServer, wait_until


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[tuple[NatsServer, Daemon]]:
    """The daemon repeats nothing: `asker` acknowledges no message, so what it waits for could come once more."""
    async with NatsServer() as server:
        home = Home(tmp_path)
        with Daemon(home, "worker", "--capability", "test.run", "--nats", server.url, *NO_RETRY) as worker:
            yield server, worker


@pytest.fixture
async def asker(bus: tuple[NatsServer, Daemon]) -> AsyncIterator[Foreign]:
    async with foreign_peer(bus[0].url, "asker") as peer:
        yield peer


async def test_greet_on_join_and_whois_answer(asker: Foreign) -> None:
    request = asker.envelope("whois", {"type": "request", "query": "test.run"})
    await asker.publish(request)
    answer = await asker.expect(kind="whois", reply_to=request["id"])
    assert answer["from"] == "worker"
    assert answer["to"] == "asker"
    assert answer["body"]["type"] == "response"
    assert answer["body"]["peer_card"]["capabilities"] == ["test.run"]
    assert "surface" not in answer
    assert "work_id" not in answer
    await asker.publish(asker.envelope("whois", {"type": "request", "query": "something.else"}))
    directed = asker.envelope("whois", {"type": "request", "query": "something.else"}, to="worker")
    await asker.publish(directed)
    await asker.expect(
        kind="whois", reply_to=directed["id"]
    )  # answered whatever it asks, unlike the broadcast before it
    assert (
        len([message for message in asker.received if message["kind"] == "whois" and message["from"] == "worker"]) == 2
    )


async def test_a_duplicate_gets_a_receipt_and_is_delivered_once(bus: tuple[NatsServer, Daemon], asker: Foreign) -> None:
    _, worker = bus
    opening = asker.work("worker", "work_twice")
    await asker.publish(opening)
    await asker.publish(opening)
    receipt = await asker.expect(kind="receipt", status="duplicate")
    assert receipt["body"]["for_id"] == receipt["reply_to"] == receipt["causation_id"] == opening["id"]
    assert receipt["body"]["reason_code"] == "duplicate"
    assert (receipt["work_id"], receipt["thread_id"]) == ("work_twice", "thread_foreign")
    assert worker.get("/v1/inbox")["counts"]["ready"] == 1
    assert worker.state_of("work_twice") == "submitted"


async def test_expired_unsupported_and_malformed_get_their_receipts(
    bus: tuple[NatsServer, Daemon], asker: Foreign
) -> None:
    _, worker = bus
    await asker.publish(asker.work("worker", "work_late", ts=int(time.time()) - 4000))
    assert (await asker.expect(work_id="work_late"))["body"]["status"] == "expired"
    odd = {**asker.work("worker", "work_odd"), "kind": "direct"}
    await asker.publish(odd)
    answer = await asker.expect(work_id="work_odd")
    assert (answer["body"]["status"], answer["body"]["reason_code"]) == ("unsupported", "unsupported_kind")
    blank = {**asker.work("worker", "work_blank"), "body": {"text": "  "}}
    await asker.publish(blank)
    answer = await asker.expect(work_id="work_blank")
    assert (answer["body"]["status"], answer["body"]["reason_code"]) == ("rejected", "malformed")
    assert worker.get("/v1/works")["works"] == []
    wait_for(lambda: len(worker.get("/v1/quarantine")["quarantined"]) == 3, 30, "the quarantine")
    reasons = {row["reason"] for row in worker.get("/v1/quarantine")["quarantined"]}
    assert reasons == {"expired", "unsupported_kind", "malformed"}


async def test_a_bad_continuation_does_not_fail_the_work(bus: tuple[NatsServer, Daemon], asker: Foreign) -> None:
    _, worker = bus
    await asker.publish(asker.work("worker", "work_open"))
    wait_for(lambda: worker.get("/v1/works")["works"], 30, "the work")
    await asker.publish({**asker.work("worker", "work_open"), "body": {"text": ""}})
    elsewhere = asker.work("worker", "work_open", thread_id="thread_elsewhere")
    await asker.publish(elsewhere)
    refusal = await asker.expect(kind="receipt", reply_to=elsewhere["id"])
    assert (refusal["body"]["status"], refusal["body"]["reason_code"]) == ("rejected", "work_container_mismatch")
    assert refusal["thread_id"] == "thread_elsewhere"
    assert worker.state_of("work_open") == "submitted"
    assert [message["reply_to"] for message in asker.received if message["kind"] == "receipt"] == [elsewhere["id"]]


async def test_a_message_for_a_closed_work_repeats_its_terminal_message(
    bus: tuple[NatsServer, Daemon], asker: Foreign
) -> None:
    _, worker = bus
    await asker.publish(asker.work("worker", "work_done"))
    wait_for(lambda: worker.get("/v1/works")["works"], 30, "the work")
    worker.post("/v1/works/work_done/complete", result={"ok": True})
    first = await asker.expect(kind="trace", state="completed")
    asker.received.clear()
    await asker.publish(asker.work("worker", "work_done"))
    again = await asker.expect(kind="trace", state="completed")
    new = {"id", "ts", "expires_at"}  # a peer of another implementation may drop the old id
    assert {name: again[name] for name in again.keys() - new} == {name: first[name] for name in first.keys() - new}
    assert again["id"] != first["id"]
    refusal = await asker.expect(kind="receipt", reason_code="work_closed")
    assert refusal["body"]["status"] == "rejected"
    assert worker.state_of("work_done") == "completed"


async def test_messages_for_others_are_ignored(bus: tuple[NatsServer, Daemon], asker: Foreign) -> None:
    _, worker = bus
    stray = asker.work("somebody", "work_stray")
    await asker.client.publish(subject_for("ws_local", "default", "worker"), json.dumps(stray).encode())
    room = direct_id("ws_local", "default", "somebody", "worker")
    intruder = asker.envelope("say", {"text": "let me in"}, surface="direct", direct_id=room, to=None)
    await asker.publish(intruder)
    other_channel = asker.work("worker", "work_other", channel="secrets")
    await asker.client.publish(subject_for("ws_local", "default", "worker"), json.dumps(other_channel).encode())
    await asker.publish(asker.work("worker", "work_mine"))
    wait_for(lambda: worker.get("/v1/works")["works"], 30, "the one that is for us")
    wait_for(lambda: worker.get("/v1/status")["counters"].get("refused.not_target") == 3, 30, "three refusals")
    assert [work["work_id"] for work in worker.get("/v1/works")["works"]] == ["work_mine"]
    assert [message["work_id"] for message in worker.get("/v1/messages")["messages"]] == ["work_mine"]
    assert worker.get("/v1/directs")["directs"] == []
    assert not [message for message in asker.received if message["kind"] == "receipt"]


async def test_capability_with_a_wrong_digest_is_refused(bus: tuple[NatsServer, Daemon], asker: Foreign) -> None:
    record = {"id": "c", "summary": "s", "outcome": "o", "digest": "sha256:" + "0" * 64}
    envelope = {**asker.work("worker", "work_cap"), "kind": "capability", "body": {"capability": record}}
    await asker.publish(envelope)
    answer = await asker.expect(work_id="work_cap")
    assert (answer["body"]["status"], answer["body"]["reason_code"]) == ("rejected", "verification_failed")


async def test_another_daemon_under_our_peer_id_is_reported(bus: tuple[NatsServer, Daemon], tmp_path: Path) -> None:
    server, worker = bus
    (tmp_path / "other").mkdir()
    home = Home(tmp_path / "other")
    with Daemon(home, "impostor", "--peer-id", "worker", "--nats", server.url) as impostor:
        for daemon in (worker, impostor):
            wait_for(partial(complains_of_identity, daemon), 20, f"{daemon.name} to notice")


def complains_of_identity(daemon: Daemon) -> bool:
    return any("peer id" in line for line in daemon.get("/v1/status")["problems"])


async def test_garbage_at_full_speed_does_not_stop_good_traffic(bus: tuple[NatsServer, Daemon], asker: Foreign) -> None:
    server, worker = bus
    async with foreign_peer(server.url, "vandal") as vandal:
        subject = subject_for("ws_local", "default", "worker")
        garbage = [b"\xff" * 600, b"{" * 600, b'{"protocol":"agh-network/v0","id":' + b"9" * 600, b""]
        sent = 0
        for number in range(20):
            for _ in range(500):
                await vandal.client.publish(subject, garbage[sent % 4])
                sent += 1
            await asker.publish(asker.work("worker", f"work_good_{number}"))
        await vandal.client.flush()
    await wait_until(
        lambda: len(worker.get("/v1/works?limit=100")["works"]) == 20, timeout=30, what="all the good traffic"
    )
    # What was published last by the vandal may come behind the last good one.
    await wait_until(
        lambda: worker.get("/v1/status")["counters"].get("refused.malformed", 0) >= sent, 30, "the rest of the garbage"
    )
    status = worker.get("/v1/status")
    assert status["counters"]["refused.malformed"] == sent
    assert status["broker"]["slow_consumer_events"] == 0
    assert status["quarantined"] <= sent


FLOOD = """
import socket, sys, time
host, port, subject, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode(), float(sys.argv[4])
link = socket.create_connection((host, port))
link.recv(4096)
link.sendall(b'CONNECT {"verbose":false}\\r\\n')
body = b'{"protocol":"agh-network/v0","id":' + b"9" * 560
burst = (b"PUB %s %d\\r\\n%s\\r\\n" % (subject, len(body), body)) * 50
end = time.monotonic() + seconds
while time.monotonic() < end:
    link.sendall(burst)
"""


def test_a_flood_from_another_process_does_not_keep_work_from_arriving(
    bus: tuple[NatsServer, Daemon], tmp_path: Path
) -> None:
    server, worker = bus
    (tmp_path / "other").mkdir()
    quick = ("--retry-first", "200ms", "--retry-ceiling", "1s")
    with Daemon(Home(tmp_path / "other"), "ops", "--nats", server.url, *quick) as ops:
        wait_for(lambda: ops.knows("worker"), 30, "presence")
        subject = subject_for("ws_local", "default", "worker")
        flood = subprocess.Popen([sys.executable, "-c", FLOOD, "127.0.0.1", str(server.port), subject, "1.5"])
        sent: list[str] = []
        while flood.poll() is None:
            sent.append(ops.post("/v1/works", to="worker", text=f"number {len(sent)}")["work_id"])
        assert flood.returncode == 0
        wait_for(lambda: len(ids_of(worker)) >= min(len(sent), 1000), 60, "everything that was acknowledged")
        assert set(sent[-1000:]) <= ids_of(worker)
        assert worker.get("/v1/status")["counters"]["refused.malformed"] > 1000


def ids_of(daemon: Daemon) -> set[str]:
    return {work["work_id"] for work in daemon.get("/v1/works?limit=1000")["works"]}
