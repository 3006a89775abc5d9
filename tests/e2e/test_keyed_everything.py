"""Peers with keys through every part: foreign agents and chains, the stream, artifacts, workers, and the audit log of it."""

import json
import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from aghbus.protocol.agh.delivery.acks import Ack, encode_ack
from aghbus.protocol.agh.identifiers import subject_for
from aghbus.protocol.agh.trust.proof import PROOF_BYTES
from tests.support.bridge_daemons import REPLY, SHORT, link, messages, query
from tests.support.bridging import submit
from tests.support.broker_users import GuardedBroker, threaded
from tests.support.daemons import DURABLE, NO_RETRY, Daemon, Home, delivery, wait_for
from tests.support.natsutil import NatsServer, pause

REQUIRE = ("--trust-mode", "require")


def with_keys(home: Home, *names: str) -> list[str]:
    """A key for each daemon; their handles."""
    return [str(home.ctl_json("--name", name, "key", "generate")["handle"]) for name in names]


def unsigned(daemon: Daemon) -> list[Any]:
    """What the daemon kept that nobody has signed."""
    return [one for one in daemon.get("/v1/messages?limit=1000")["messages"] if one["trust"] != "verified"]


async def test_foreign_agents_of_peers_that_require_signatures(home: Home, server: NatsServer) -> None:
    ops_handle, worker_handle = with_keys(home, "ops", "worker")
    names = ("--bridge-agent", f"asker={ops_handle}", "--bridge-agent", f"helper={worker_handle}")
    flags = ("--nats", server.url, *DURABLE, *NO_RETRY, *REQUIRE, *names)
    with Daemon(home, "worker", *flags) as worker, Daemon(home, "ops", *flags) as ops:
        wait_for(lambda: ops.knows(worker_handle) and worker.knows(ops_handle), SHORT, "presence")
        worker.kill()
        question = query("asker", "helper", ttl=600)
        sent = submit(ops, "agentos", question)["sent"][0]
        wait_for(lambda: delivery(ops, sent["id"]) == "published", SHORT, "the stream to have the question")
        worker.start()
        (asked,) = messages(worker, "agentos", 1)
        assert (asked["message"], asked["native"]) == (question, False)
        evidence = {"sources": [{"type": "code", "location": "a.py", "confidence": 90}], "confidence": 90}
        reply = query("helper", "asker", type="response", replyTo=question["id"], evidence=evidence)
        submit(worker, "agentos", reply)
        (answer,) = messages(ops, "agentos", 1)
        assert (answer["message"], answer["work_state"]) == (reply, "completed")
        said = submit(ops, "sacp", "List the names.", target=worker_handle)
        (task,) = messages(worker, "sacp", 1, f"?since={asked['seq']}")
        assert task["message"] == "List the names."
        submit(worker, "sacp", json.dumps(REPLY), work_id=task["work_id"])
        wait_for(lambda: ops.state_of(said["sent"][0]["work_id"]) == "completed", SHORT, "the response")
        for daemon in (ops, worker):
            assert unsigned(daemon) == []
            assert daemon.get("/v1/quarantine")["quarantined"] == []


def test_message_over_limit_by_signature_uses_artifact_store(home: Home) -> None:
    _, worker_handle = with_keys(home, "ops", "worker")
    with Daemon(home, "worker") as worker, Daemon(home, "ops") as ops:
        wait_for(lambda: ops.knows(worker_handle), SHORT, "presence")

        def sent(size: int) -> tuple[int, Any]:
            """The bytes of the envelope that carries so many characters, and its `ext`."""
            given = submit(ops, "sacp", "y" * size, target=worker_handle)["sent"][0]
            envelope = ops.get(f"/v1/messages/{given['id']}")["envelope"]
            return len(json.dumps(envelope, separators=(",", ":"), ensure_ascii=False).encode()), envelope["ext"]

        length, carried = sent(900_000)
        assert "sacp.message" in carried
        for over in (0, 1, PROOF_BYTES):
            size = 900_000 + 1_048_576 - length + over
            _, carried = sent(size)
            assert ("sacp.message_ref" in carried) == (over > 0), over
        got = messages(worker, "sacp", 4)
        assert [one["native"] for one in got] == [False] * 4
        assert len(got[-1]["message"]) == size


def test_a_sentient_chain_over_handles_tells_the_memory_agent(home: Home) -> None:
    goal_handle, final_handle, memory_handle = with_keys(home, "goal", "final", "memory")
    names = ("--bridge-agent", f"Goal={goal_handle}", "--bridge-agent", f"Final={final_handle}")
    flags = (*REQUIRE, *names, "--sentient-memory-agent", memory_handle, "--sentient-user", goal_handle)
    with (
        Daemon(home, "goal", *flags) as goal,
        Daemon(home, "final", *flags) as final,
        Daemon(home, "memory", *flags) as memory,
    ):
        wait_for(lambda: goal.knows(final_handle) and final.knows(memory_handle, goal_handle), SHORT, "presence")
        first = link("Goal", "Final", 1)
        submit(goal, "sentient", first)
        (given,) = messages(final, "sentient", 1)
        assert given["message"] == first
        last = link("Final", None, 2, first["message_id"])
        submit(final, "sentient", last)
        wait_for(lambda: goal.state_of(given["work_id"]) == "completed", SHORT, "the end")
        (told,) = messages(memory, "sentient", 1)
        assert last["message_id"] in json.dumps(told["message"])
        assert memory.get("/v1/quarantine")["quarantined"] == []


def test_a_chain_serve_and_artifacts_between_verified_peers(tmp_path: Path) -> None:
    home = Home(tmp_path)
    ops_handle, worker_handle = with_keys(home, "ops", "worker")
    with Daemon(home, "ops", *REQUIRE) as ops, Daemon(home, "worker", "--capability", "test.run", *REQUIRE) as worker:
        wait_for(lambda: ops.knows(worker_handle) and worker.knows(ops_handle), SHORT, "presence")
        folder = tmp_path / "job"
        folder.mkdir()
        (folder / "out.txt").write_bytes(b"made by a verified peer")
        script = "import json, sys; print(json.dumps({'who': json.load(sys.stdin)['from']}))"
        command = [sys.executable, "-m", "aghbus.cli", "--name", "worker", "serve", "--capability", "test.run"]
        command += ["--", sys.executable, "-c", script]
        serve = subprocess.Popen(command, env=home.env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            nodes = {
                "a": {"peer": worker_handle, "input": "go"},
                "b": {"peer": worker_handle, "input": "{{a.data.output.who}}"},
            }
            edges = [{"from": "a", "to": "b"}]
            document = {"name": "test", "start": "a", "max_steps": 5, "nodes": nodes, "edges": edges}
            run_id = ops.post("/v1/chains/runs", chain=document)["run_id"]
            wait_for(lambda: ops.get(f"/v1/chains/runs/{run_id}")["state"] != "running", SHORT, "the chain's end")
        finally:
            serve.terminate()
            told, _ = serve.communicate(timeout=30)
        run = ops.get(f"/v1/chains/runs/{run_id}")
        assert run["state"] == "completed", (run["error"], [step["response"] for step in run["history"]], told)
        assert [step["peer"] for step in run["history"]] == [worker_handle] * 2
        assert ops_handle in json.dumps(run["history"][0]["response"])
        work_id = run["history"][0]["work_id"]
        put = subprocess.run(
            [sys.executable, "-m", "aghbus.cli", "--name", "worker", "artifact", "put", work_id, "out.txt"],
            env=home.env,
            cwd=folder,
            capture_output=True,
            check=False,
        )
        assert put.returncode == 0, put.stderr
        (listed,) = home.ctl_json("--name", "ops", "artifact", "list", work_id)["artifacts"]
        assert listed["put_by"] == worker_handle
        target = tmp_path / "got.txt"
        got = home.ctl("--name", "ops", "artifact", "get", work_id, "out.txt", "-O", str(target))
        assert got.returncode == 0, got.stderr
        assert target.read_bytes() == b"made by a verified peer"
        assert unsigned(ops) == unsigned(worker) == []
        assert (home.root / "state/aghbus/instances/ops/identity.pem").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("durability", ["core", "jetstream"])
async def test_verified_peers_under_the_brokers_permissions_for_their_handles(home: Home, durability: str) -> None:
    ops_handle, worker_handle = with_keys(home, "ops", "patch-worker")
    broker = GuardedBroker(home, "--durability", durability, peers=(ops_handle, worker_handle))
    flags = ("--durability", durability, *REQUIRE)
    async with broker.server:
        if durability == "jetstream":
            await broker.set_up()
        with broker.daemon("ops", *flags) as ops, broker.daemon("patch-worker", *flags) as worker:
            await threaded(_work_is_done, ops, worker, ops_handle, worker_handle)
            for daemon in (ops, worker):
                assert daemon.get("/v1/status")["counters"].get("link.PermissionDenied", 0) == 0


def _work_is_done(ops: Daemon, worker: Daemon, ops_handle: str, worker_handle: str) -> None:
    """A work from end to end; each side's daemon acknowledges the commit, which is not an envelope and is not signed."""
    wait_for(lambda: ops.knows(worker_handle) and worker.knows(ops_handle), SHORT, "presence")
    opened = ops.post("/v1/works", to=worker_handle, text="Run it")
    wait_for(lambda: worker.get("/v1/works")["works"], SHORT, "the work")
    done = worker.post(f"/v1/works/{opened['work_id']}/complete", result={"passed": True})
    wait_for(lambda: ops.state_of(opened["work_id"]) == "completed", SHORT, "the end")
    for daemon, message in ((ops, opened["id"]), (worker, done["id"])):
        wait_for(lambda: delivery(daemon, message) == "receipted", SHORT, "the acknowledgement")  # noqa: B023 - at once
    assert unsigned(ops) == unsigned(worker) == []


async def tapped_opening(thief: Client, ops: Daemon, worker_handle: str) -> tuple[dict[str, Any], Msg]:
    """A work that ops opens while its worker is away, and its opening as the thief sees it on the broker."""
    tapped = await thief.subscribe(subject_for("ws_local", "default", worker_handle))
    await thief.flush()
    sent: dict[str, Any] = await threaded(lambda: ops.post("/v1/works", to=worker_handle, text="Run it"))
    return sent, await tapped.next_msg(SHORT)


async def test_only_a_verified_peer_itself_can_acknowledge_or_refuse(home: Home, server: NatsServer) -> None:
    ops_handle, worker_handle = with_keys(home, "ops", "worker")
    flags = ("--nats", server.url)
    with Daemon(home, "ops", *flags) as ops, Daemon(home, "worker", *flags) as worker:
        await threaded(_meet, ops, worker, ops_handle, worker_handle)
        worker.kill()
        thief = await nats.connect(server.url)
        try:
            sent, seen = await tapped_opening(thief, ops, worker_handle)
            digest = sha256(seen.data).hexdigest()
            committed = Ack(sent["id"], "committed", None, digest)
            for forged in (committed, Ack(sent["id"], "refused", "not_target", digest)):
                await thief.publish(seen.reply, encode_ack(forged))
            await thief.flush()
            await threaded(
                wait_for, lambda: counted(ops, "acks.unknown") >= 2, SHORT, "the forgeries to be taken for none"
            )
        finally:
            await thief.close()
        await threaded(wait_for, lambda: delivery(ops, sent["id"]) != "queued", SHORT, "the broker's PONG")
        assert (ops.state_of(sent["work_id"]), delivery(ops, sent["id"])) == ("submitted", "published")
        await threaded(worker.start)
        await threaded(wait_for, lambda: delivery(ops, sent["id"]) == "receipted", SHORT, "the real answer")


async def test_a_forged_copy_that_comes_first_has_no_message_refused(home: Home, server: NatsServer) -> None:
    ops_handle, worker_handle = with_keys(home, "ops", "worker")
    flags = ("--nats", server.url)
    with Daemon(home, "ops", *flags) as ops, Daemon(home, "worker", *flags) as worker:
        await threaded(_meet, ops, worker, ops_handle, worker_handle)
        worker.kill()
        thief = await nats.connect(server.url)
        try:
            sent, seen = await tapped_opening(thief, ops, worker_handle)
            forged = json.loads(seen.data)
            del forged["work_id"]  # no opening, so that the protocol has no receipt for it
            assert ops.process is not None
            await pause(ops.process.pid)
            try:
                await threaded(worker.start)
                await thief.publish(seen.subject, json.dumps(forged).encode(), reply=seen.reply)
                await thief.flush()
                await threaded(
                    wait_for, lambda: counted(worker, "refused.verification_failed") == 1, SHORT, "the forgery"
                )
            finally:
                os.kill(ops.process.pid, signal.SIGCONT)
        finally:
            await thief.close()
        await threaded(
            wait_for,
            lambda: delivery(ops, sent["id"]) in ("receipted", "dead"),
            SHORT,
            "the answer to the real one",
        )
        assert (ops.state_of(sent["work_id"]), delivery(ops, sent["id"])) == ("submitted", "receipted")
        assert [work["work_id"] for work in worker.get("/v1/works")["works"]] == [sent["work_id"]]


def _meet(ops: Daemon, worker: Daemon, ops_handle: str, worker_handle: str) -> None:
    wait_for(lambda: ops.knows(worker_handle) and worker.knows(ops_handle), SHORT, "presence")


def counted(daemon: Daemon, name: str) -> int:
    return int(daemon.get("/v1/status")["counters"].get(name, 0))


def test_whom_we_listen_to_is_in_the_audit_log_when_it_changes(tmp_path: Path) -> None:
    home, key = Home(tmp_path), "sha256:" + "ab" * 32
    with Daemon(home, "ops") as ops:
        home.ctl_json("--name", "ops", "trust", "pin", f"worker={key}")
        home.ctl_json("--name", "ops", "trust", "deny", key)
        home.ctl_json("--name", "ops", "trust", "deny", key, "--remove")
        assert ops.get("/v1/trust")["rules"][0]["subject"] == "worker"
        logged = home.ctl("--name", "ops", "audit", "export").stdout.splitlines()
    changes = [(row["outcome"], row["reason"]) for row in map(json.loads, logged) if row["event"] == "policy"][2:]
    assert changes == [
        ("trust.added", f"pin worker {key}"),
        ("trust.added", f"deny {key}"),
        ("trust.removed", f"deny {key}"),
    ]
