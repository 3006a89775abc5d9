"""A first key and a new key make a daemon another peer: what was begun before is finished under the identity of before."""

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest

from aghbus.daemon.jetstream.stream import STREAM
from aghbus.host.key_files import read_key
from aghbus.protocol.agh.identifiers import route_token, subject_for
from aghbus.protocol.agh.trust.keys import handle_of
from aghbus.protocol.agh.trust.proof import EnvelopeSigner, sign, verify
from tests.support.daemons import Daemon, Home, HttpError, ops_and_worker, wait_for
from tests.support.foreign import foreign_peer
from tests.support.jetstream import Operator, admin
from tests.support.natsutil import NatsServer, wait_until

QUICK = ("--retry-first", "100ms", "--retry-ceiling", "500ms")


def key(home: Home, name: str, what: str = "generate") -> str:
    """A first or another key for the daemon called `name`; its new handle."""
    return str(home.ctl_json("--name", name, "key", what)["handle"])


def state_folder(home: Home, name: str) -> Path:
    return home.root / "state/aghbus/instances" / name


def opened(daemon: Daemon, to: str, text: str, **more: Any) -> str:
    """A new work; its id."""
    return str(daemon.post("/v1/works", to=to, text=text, **more)["work_id"])


def has(daemon: Daemon, *works: str) -> bool:
    return {one["work_id"] for one in daemon.get("/v1/works")["works"]} >= set(works)


def former(daemon: Daemon) -> dict[str, int]:
    """Open works by former identity."""
    return {one["peer_id"]: one["open_works"] for one in daemon.get("/v1/status")["former"]}


def senders(daemon: Daemon, work_id: str) -> set[str]:
    """Who has sent anything of a work, as far as it was let in."""
    return {step["actor"] for step in daemon.get(f"/v1/works/{work_id}")["history"]}


def reasons(daemon: Daemon, work_id: str) -> list[str]:
    """Why messages of a work were ignored."""
    found = daemon.get(f"/v1/messages?direction=in&work={work_id}")["messages"]
    return [str(one["reason"]) for one in found if one["outcome"] == "ignored"]


def listened_to(home: Home, peer_id: str) -> bool:
    """Whether anybody is subscribed to the subject of `peer_id`, by the word of the embedded broker."""

    async def ask() -> bool:
        folder = home.root / "state/aghbus/broker"
        port, token = json.loads((folder / "broker.json").read_text())["port"], (folder / "token").read_text().strip()
        client = await nats.connect(f"nats://127.0.0.1:{port}", token=token)
        try:
            await client.request(subject_for("ws_local", "default", peer_id), b"", timeout=2)
        except nats.errors.NoRespondersError:
            return False
        except nats.errors.TimeoutError:
            return True
        finally:
            await client.close()
        raise AssertionError("an invalid envelope must not be answered")

    return asyncio.run(ask())


def test_works_of_a_plain_id_are_finished_under_it_after_first_key(home: Home) -> None:
    with ops_and_worker(home, *QUICK) as (ops, worker):
        ours = opened(ops, "worker", "as initiator")
        theirs = opened(worker, "ops", "as target", direct=True)
        wait_for(lambda: has(worker, ours) and has(ops, theirs), 15, "the openings")
        ops.post(f"/v1/works/{theirs}/accept")
        wait_for(lambda: worker.state_of(theirs) == "working", 15, "the acceptance")
        worker.post(f"/v1/works/{ours}/need-input", message="which one?")
        wait_for(lambda: ops.state_of(ours) == "needs_input", 15, "the question")
        assert ops.get("/v1/status")["former"] == []
        late = opened(ops, "worker", "never accepted", accept_within=25)  # time for a restart and a look at it
        wait_for(lambda: has(worker, late), 15, "the last opening")

        assert ops.stop() == 0
        handle = key(home, "ops")
        ops.start()
        assert ops.get("/v1/status")["peer_id"] == handle
        assert former(ops) == {"ops": 3}
        shown = home.ctl_json("--name", "ops", "key", "show")
        assert [(one["peer_id"], one["open_works"]) for one in shown["former"]] == [("ops", 3)]
        assert b"ops: 3 open works" in home.ctl("--name", "ops", "status").stdout
        wait_for(lambda: worker.knows(handle), 15, "the new identity to be known")

        (room,) = ops.get("/v1/directs")["directs"]
        assert room["peer"] == "worker"
        wait_for(lambda: worker.state_of(late) == "canceled", 60, "the deadline, kept under the old identity")
        ops.post(f"/v1/works/{ours}/say", message="the second")
        wait_for(lambda: worker.state_of(ours) == "working", 15, "the answer")
        ops.kill()
        new = opened(worker, "ops", "too late")
        worker.post(f"/v1/works/{ours}/complete", result={"ok": True})
        ops.start()
        wait_for(lambda: ops.state_of(ours) == "completed", 15, "what was sent while we were away")
        wait_for(lambda: worker.state_of(new) in ("failed", "canceled"), 15, "the refusal of new work")
        wait_for(
            lambda: any(one["reason"] == "not_found" for one in ops.get("/v1/quarantine")["quarantined"]), 20, "why"
        )
        assert listened_to(home, "ops")
        ops.post(f"/v1/works/{theirs}/complete", message="done")
        wait_for(lambda: worker.state_of(theirs) == "completed", 15, "the end of the last one")
        for daemon in (ops, worker):
            for work in (ours, theirs, late):
                assert senders(daemon, work) <= {"ops", "worker"}, (daemon.name, work)

        wait_for(lambda: former(ops) == {}, 20, "the old identity to retire")
        wait_for(lambda: not listened_to(home, "ops"), 20, "its subscription to end")
        assert listened_to(home, handle)
        assert ops.get("/v1/status")["counters"]["identities.retired"] == 1
        assert ops.get("/v1/status")["counters"].get("identity.conflicts", 0) == 0
        again = opened(worker, handle, "to the new one")
        wait_for(lambda: has(ops, again), 15, "new work for the new identity")


def test_agents_of_a_format_finish_the_old_identitys_works_under_it(home: Home) -> None:
    ops, worker = Daemon(home, "ops", *QUICK), Daemon(home, "worker", *QUICK)
    answer = json.dumps({"thought": "", "status": "success", "data": {"sum": 10}, "message": "It is 10."})
    with ops, worker:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 15, "presence")
        work = worker.post("/v1/bridge/sacp", text="5+5?", target="ops")["sent"][0]["work_id"]
        ours = ops.post("/v1/bridge/sacp", text="6+6?", target="worker")["sent"][0]["work_id"]
        wait_for(lambda: has(ops, work) and has(worker, ours), 15, "the openings")
        assert ops.stop() == 0
        key(home, "ops")
        ops.start()
        ops.post("/v1/bridge/sacp", text=answer)  # the only open work, which is the old identity's
        worker.post("/v1/bridge/sacp", text=answer)
        for daemon in (ops, worker):
            for one in (work, ours):
                wait_for(lambda d=daemon, w=one: d.state_of(w) == "completed", 15, "the ends")  # type: ignore[misc]
                assert senders(daemon, one) <= {"ops", "worker"}
        seq = max(one["seq"] for one in ops.get(f"/v1/messages?direction=in&kind=trace&work={ours}")["messages"])
        handed = ops.get(f"/v1/bridge/sacp/messages/{seq}")
        assert (handed["message"], handed["native"]) == (json.loads(answer), False)
        wait_for(lambda: former(ops) == {}, 20, "the old identity to retire")


async def test_new_work_for_the_old_identity_is_answered_by_a_receipt(home: Home) -> None:
    async with NatsServer() as server, foreign_peer(server.url, "asker") as asker:
        ops = Daemon(home, "ops", "--nats", server.url)
        with ops:
            await asker.publish(asker.work("ops", "work_before"))
            await wait_until(lambda: has(ops, "work_before"), 15, "the opening")
            ops.stop()
            handle = key(home, "ops")
            ops.start()
            await asker.publish(asker.work("ops", "work_after"))
            told = await asker.expect(kind="receipt", work_id="work_after")
            assert (told["from"], told["body"]["status"], told["body"]["reason_code"]) == (
                "ops",
                "rejected",
                "not_found",
            )
            assert handle in told["body"]["detail"]
            again = asker.work("ops", "work_before", thread_id="thread_other")
            await asker.publish(again)  # in the wrong place: the work's own rules answer, under its own identity
            wrong = await asker.expect(kind="receipt", for_id=again["id"])
            assert (wrong["from"], wrong["body"]["reason_code"]) == ("ops", "work_container_mismatch")
            garbled = asker.work("ops", "work_garbled", ts=1, expires_at=2)
            await asker.publish(garbled)
            expired = await asker.expect(kind="receipt", for_id=garbled["id"])
            assert (expired["from"], expired["body"]["status"]) == ("ops", "expired")
            ops.post("/v1/works/work_before/complete", message="done")
            end = await asker.expect(kind="trace", work_id="work_before")
            assert (end["from"], end["proof"]) == ("ops", None)
            greets = {one["from"] for one in asker.received if one["kind"] == "greet" and one["proof"] is not None}
            assert greets == {handle}
            assert not any(one["from"] == handle for one in asker.received if one.get("work_id") is not None)


async def test_works_of_a_rotated_key_are_finished_with_the_old_key_only(home: Home) -> None:
    async with NatsServer() as server, foreign_peer(server.url, "mallory") as mallory:
        old, other = key(home, "ops"), key(home, "worker")
        options = ("--nats", server.url, *QUICK)
        ops, worker = Daemon(home, "ops", *options), Daemon(home, "worker", *options, "--trust-mode", "require")
        with ops, worker:
            wait_for(lambda: ops.knows(other) and worker.knows(old), 15, "presence")
            ours, theirs = opened(ops, other, "as initiator"), opened(worker, old, "as target")
            wait_for(lambda: has(worker, ours) and has(ops, theirs), 15, "the openings")
            ops.kill()
            new = key(home, "ops", "rotate")
            kept = state_folder(home, "ops") / f"identity-{old.partition('@')[2]}.pem"
            assert kept.exists()
            ops.start()
            assert (ops.get("/v1/status")["peer_id"], former(ops)) == (new, {old: 2})
            ops.post(f"/v1/works/{theirs}/accept")
            wait_for(lambda: worker.state_of(theirs) == "working", 15, "the acceptance")

            # What the new key signs does not count for the old works, under its own name or under the old one.
            fresh = read_key(state_folder(home, "ops") / "identity.pem")
            assert handle_of("ops", fresh.public) == new
            work = worker.get(f"/v1/works/{theirs}")["work"]
            place = {"surface": "thread", "thread_id": work["thread_id"], "to": other, "work_id": theirs}
            assert home.ctl("--name", "worker", "trust", "admit", new).returncode == 0  # others' traces leave no row
            failing = mallory.envelope("trace", {"state": "failed"}, **place)
            under_new = EnvelopeSigner(fresh, "ops")({**failing, "from": new, "id": "msg_under_new"})
            under_old = sign({**failing, "from": old, "id": "msg_under_old"}, fresh)
            for forged in (under_new, under_old):
                await mallory.publish(forged)
            wait_for(lambda: "actor_not_allowed" in reasons(worker, theirs), 15, "the outsider to be ignored")
            wait_for(lambda: worker.get("/v1/quarantine")["quarantined"], 15, "the forgery to be refused")
            refused = worker.get("/v1/quarantine")["quarantined"]
            assert [(one["message_id"], one["reason"]) for one in refused] == [("msg_under_old", "verification_failed")]
            assert worker.state_of(theirs) == "working"

            ops.kill()
            worker.post(f"/v1/works/{ours}/complete", message="done")
            ops.start()
            wait_for(lambda: ops.state_of(ours) == "completed", 15, "what was sent while we were away")
            ops.post(f"/v1/works/{theirs}/complete", message="done")
            wait_for(lambda: worker.state_of(theirs) == "completed", 15, "the end of the last one")
            for one in worker.get(f"/v1/messages?direction=in&work={theirs}")["messages"]:
                if one["id"] == "msg_under_new":
                    continue
                assert one["sender"] == old
                assert verify(json.dumps(one["envelope"]).encode()).state == "verified"

            wait_for(lambda: former(ops) == {}, 20, "the old identity to retire")
            wait_for(lambda: not kept.exists(), 20, "its key to be put aside")
            assert kept.with_name(f"{kept.stem}.retired.pem").stat().st_mode & 0o777 == 0o600
            assert {one["sender"] for one in ops.get("/v1/messages?direction=out")["messages"]} == {old}


def test_without_the_old_key_its_works_wait_and_a_problem_is_reported(home: Home) -> None:
    old, other = key(home, "ops"), key(home, "worker")
    ops, worker = Daemon(home, "ops", *QUICK), Daemon(home, "worker", *QUICK)
    with ops, worker:
        wait_for(lambda: ops.knows(other), 15, "presence")
        work = opened(ops, other, "as initiator")
        wait_for(lambda: has(worker, work), 15, "the opening")
        ops.stop()
        key(home, "ops", "rotate")
        kept = state_folder(home, "ops") / f"identity-{old.partition('@')[2]}.pem"
        away = kept.rename(home.root / "away.pem")
        ops.start()
        (problem,) = ops.get("/v1/status")["problems"]
        assert old in problem
        assert str(kept) in problem
        with pytest.raises(HttpError) as refused:
            ops.post(f"/v1/works/{work}/cancel")
        assert refused.value.status == 409
        assert str(kept) in refused.value.answer["hint"]
        ops.stop()
        away.rename(kept)
        ops.start()
        assert ops.get("/v1/status")["problems"] == []
        ops.post(f"/v1/works/{work}/cancel")
        wait_for(lambda: worker.state_of(work) == "canceled", 15, "the end")


async def test_a_stream_keeps_the_place_of_the_old_identity_until_it_retires(home: Home, server: NatsServer) -> None:
    options = ("--nats", server.url, "--durability", "jetstream")
    ops = Daemon(home, "ops", *options)
    worker = Daemon(home, "worker", *options, "--retry-first", "1h", "--retry-ceiling", "1h")
    with ops, worker:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 15, "presence")
        ours, theirs = opened(ops, "worker", "as initiator"), opened(worker, "ops", "as target")
        wait_for(lambda: has(worker, ours) and has(ops, theirs), 15, "the openings")
        ops.kill()
        handle = key(home, "ops")
        worker.post(f"/v1/works/{ours}/complete", message="only the stream brings it again")
        ops.start()
        wait_for(lambda: ops.state_of(ours) == "completed", 20, "what was sent while we were away")
        async with admin(server) as api:
            assert await _consumers(api) == {route_token(peer) for peer in ("ops", handle, "worker")}
            ops.post(f"/v1/works/{theirs}/complete", message="done")
            wait_for(lambda: worker.state_of(theirs) == "completed", 15, "the end of the last one")
            wait_for(lambda: former(ops) == {}, 20, "the old identity to retire")
            wait_for(lambda: len(ops.get("/v1/status")["broker"]["jetstream"]["consumers"]) == 1, 20, "one consumer")
            await _until_consumers(api, {handle, "worker"})
        assert ops.get("/v1/status")["problems"] == []
        assert not ops.knows("ops")
        assert ops.get("/v1/status")["counters"].get("identity.conflicts", 0) == 0


async def _consumers(api: Operator) -> set[str]:
    """Whose consumers there are, by their names."""
    names = (await api.call(f"CONSUMER.NAMES.{STREAM}"))["consumers"]
    return {name.split("_")[1] for name in names}


async def _until_consumers(api: Operator, peers: set[str]) -> None:
    tokens = {route_token(peer) for peer in peers}
    async with asyncio.timeout(40):
        while await _consumers(api) != tokens:  # noqa: ASYNC110 - the broker tells nobody
            await asyncio.sleep(0.05)
