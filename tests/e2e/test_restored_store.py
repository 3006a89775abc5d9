"""After a restore: what may have been processed before is held for the operator, and peers are told."""

import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.backups import backup, restore
from tests.support.bridge_daemons import messages
from tests.support.daemons import Daemon, Home, HttpError, wait_for
from tests.support.foreign import Foreign, foreign_peer
from tests.support.natsutil import NatsServer

BRIDGED = "/v1/bridge/humaninloop/messages"


@pytest.fixture
async def asker() -> AsyncIterator[tuple[NatsServer, Foreign]]:
    async with NatsServer() as server, foreign_peer(server.url, "asker") as peer:
        yield server, peer


async def restored_worker(root: Path, server: NatsServer, asker: Foreign, opening: dict[str, Any]) -> Daemon:
    """A worker that ran `opening` after its backup, was killed and restored, and gets the same bytes again."""
    worker = Daemon(Home(root), "worker", "--nats", server.url).start()
    copy = backup(worker)
    await asker.publish(opening)
    wait_for(lambda: worker.state_of(opening["work_id"]), 30, "the work")
    taken = worker.post("/v1/inbox/next")["item"]
    worker.post(f"/v1/works/{opening['work_id']}/complete")
    assert taken["message"]["id"] == opening["id"]
    worker.kill()
    restore(worker, copy)
    worker.start()
    assert worker.state_of(opening["work_id"]) == ""
    await asker.publish(opening)
    wait_for(lambda: worker.state_of(opening["work_id"]), 30, "the work, again")
    return worker


async def test_a_repeated_opening_is_held_and_requeue_runs_it(
    tmp_path: Path, asker: tuple[NatsServer, Foreign]
) -> None:
    server, peer = asker
    opening = peer.work("worker", "work_again", expires_at=int(time.time()) + 3600)
    worker = await restored_worker(tmp_path, server, peer, opening)
    try:
        assert worker.state_of("work_again") == "submitted"
        notice = await peer.expect(kind="say")
        assert (notice["work_id"], notice["id"][:25]) == ("work_again", "msg_auto_waits_for_releas")
        (item,) = worker.get("/v1/inbox")["items"]
        seq = item["seq"]
        assert (item["state"], item["message"]["id"]) == ("dead", opening["id"])
        assert item["last_error"].startswith("held: it may have been carried out before the restore of ")
        assert item["last_error"].endswith(f"`aghctl inbox requeue {seq}` runs it")
        assert worker.post("/v1/inbox/next")["item"] is None
        with pytest.raises(HttpError, match="404"):
            worker.get(f"{BRIDGED}/{seq}")
        status = worker.get("/v1/status")
        assert (status["restored"]["held"], status["counters"]["inbox.held"]) == (1, 1)
        assert "openings that it may have processed before are held, 1 now" in status["problems"][-1]

        fresh = peer.work("worker", "work_fresh", ts=status["restored"]["restored_ms"] // 1000 + 301)
        wait_for(lambda: time.time() > fresh["ts"] - 299, 30, "the time from which on its ts is valid")
        await peer.publish(fresh)
        wait_for(lambda: worker.get("/v1/inbox")["counts"]["ready"] == 1, 30, "the fresh opening")
        assert worker.post("/v1/inbox/next", ack=True)["item"]["message"]["id"] == fresh["id"]

        await peer.publish(opening)
        await peer.expect(kind="receipt", status="duplicate")
        worker.home.ctl_json("--name", "worker", "inbox", "requeue", str(seq))
        assert worker.get(f"{BRIDGED}/{seq}")["envelope_id"] == opening["id"]
        assert worker.post("/v1/inbox/next")["item"]["message"]["id"] == opening["id"]
        assert worker.get("/v1/status")["restored"]["held"] == 0
    finally:
        worker.stop()


def test_the_initiator_is_told_that_its_work_is_held_and_that_it_is_released(home: Home) -> None:
    with Daemon(home, "ops") as ops, Daemon(home, "worker") as worker:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
        copy = backup(worker)
        worker.kill()
        work_id = ops.post("/v1/works", to="worker", text="run the tests")["work_id"]
        restore(worker, copy)
        worker.start()

        def why() -> dict[str, Any]:
            reason: dict[str, Any] = ops.get(f"/v1/works/{work_id}")["why"]
            return reason

        wait_for(lambda: why()["code"] == "held", 30, "the notice of the hold")
        assert why()["text"].startswith("held at worker: it may have been carried out before a restore")
        shown = home.ctl("--name", "ops", "work", "show", work_id).stdout.decode()
        assert "held at worker" in shown and "the operator of worker decides there (`inbox requeue`)" in shown
        assert (ops.state_of(work_id), worker.state_of(work_id)) == ("submitted", "submitted")
        (item,) = ops.get("/v1/inbox")["items"]
        assert "until the operator releases it" in item["message"]["envelope"]["body"]["text"]

        home.ctl_json("--name", "worker", "inbox", "requeue", "--held")
        wait_for(lambda: why()["code"] == "not_accepted", 30, "the notice of the release")
        taken = worker.post("/v1/inbox/next", ack=True)["item"]["message"]
        assert taken["work_id"] == work_id
        worker.post(f"/v1/works/{work_id}/complete")
        wait_for(lambda: ops.state_of(work_id) == "completed", 30, "the end of the work")
        assert ops.get("/v1/status")["problems"] == []
        assert [one["message"]["kind"] for one in ops.get("/v1/inbox")["items"]] == ["say", "say", "trace"]


async def test_a_held_work_that_has_ended_at_its_initiator_leaves_the_list(
    tmp_path: Path, asker: tuple[NatsServer, Foreign]
) -> None:
    server, peer = asker
    opening = peer.work("worker", "work_again", expires_at=int(time.time()) + 3600)
    worker = await restored_worker(tmp_path, server, peer, opening)
    try:
        notice = await peer.expect(kind="say")
        body = {"for_id": notice["id"], "status": "rejected", "reason_code": "work_closed"}
        place = {name: notice[name] for name in ("surface", "thread_id", "work_id")}
        await peer.publish(peer.envelope("receipt", body, to="worker", reply_to=notice["id"], **place))
        wait_for(lambda: worker.state_of("work_again") == "failed", 30, "the end of the work")
        assert worker.get("/v1/status")["restored"]["held"] == 0
        assert worker.get("/v1/inbox")["items"] == []
    finally:
        worker.stop()


async def test_rejecting_a_held_work_ends_it(tmp_path: Path, asker: tuple[NatsServer, Foreign]) -> None:
    server, peer = asker
    opening = peer.work("worker", "work_again", expires_at=int(time.time()) + 3600)
    worker = await restored_worker(tmp_path, server, peer, opening)
    try:
        worker.kill()  # what is held survives
        worker.start()
        assert worker.get("/v1/status")["restored"]["held"] == 1
        worker.home.ctl_json("--name", "worker", "work", "reject", "work_again", "--reason", "busy")
        await peer.expect(kind="receipt", status="rejected", for_id=opening["id"])
        assert worker.get("/v1/status")["restored"]["held"] == 0
        assert worker.get("/v1/inbox")["items"] == []
    finally:
        worker.stop()


async def test_bridge_delivers_a_held_opening_only_after_requeue(
    tmp_path: Path, asker: tuple[NatsServer, Foreign]
) -> None:
    server, peer = asker
    opening = peer.work("worker", "work_again", expires_at=int(time.time()) + 3600)
    worker = await restored_worker(tmp_path, server, peer, opening)
    try:
        (held,) = worker.get("/v1/inbox")["items"]
        said = peer.envelope("say", {"text": "later"}, to="worker", surface="thread", thread_id="thread_later")
        await peer.publish(said)
        gap, first = messages(worker, "sacp", 2)
        assert gap["type"] == "gap"  # what came after the backup is lost
        assert first["envelope_id"] == said["id"]
        worker.post("/v1/bridge/sacp/ack", seq=first["seq"])
        assert worker.state_of("work_again") == "submitted"
        worker.post(f"/v1/inbox/{held['seq']}/requeue")
        (released,) = messages(worker, "sacp", 1)
        assert released["envelope_id"] == opening["id"]
        worker.post("/v1/bridge/sacp/ack", seq=first["seq"])
        assert worker.state_of("work_again") == "working"
    finally:
        worker.stop()


async def test_greets_announce_the_restore(tmp_path: Path, asker: tuple[NatsServer, Foreign]) -> None:
    server, peer = asker
    with Daemon(Home(tmp_path), "worker", "--nats", server.url) as worker:
        assert worker.get("/v1/status")["restored"] is None
        copy = backup(worker)
        await peer.expect(kind="greet")
        assert {one["ext"]["aghbus.restored"]["backup_ms"] for one in peer.received if one["kind"] == "greet"} == {0}
        peer.received.clear()
        worker.stop()
        assert (await peer.expect(kind="greet"))["ext"]["aghbus.leaving"] is True
        peer.received.clear()
        restore(worker, copy)
        worker.start()
        greet = await peer.expect(kind="greet")
        status = worker.get("/v1/status")["restored"]
        assert f"the store was restored epoch={status['epoch']}" in worker.log.read_text().replace('"', "")
        assert greet["ext"]["aghbus.restored"] == {name: status[name] for name in ("epoch", "backup_ms", "restored_ms")}


def test_a_peer_names_the_works_that_may_be_forgotten(home: Home) -> None:
    with Daemon(home, "ops") as ops, Daemon(home, "worker") as worker:
        known = ops.post("/v1/works", to="worker", text="before the backup")["work_id"]
        wait_for(lambda: worker.state_of(known), 30, "the work")
        worker.post(f"/v1/works/{known}/accept")
        wait_for(lambda: ops.state_of(known) == "working", 30, "its acceptance")
        copy = backup(worker)
        lost = ops.post("/v1/works", to="worker", text="after the backup")
        wait_for(lambda: worker.state_of(lost["work_id"]), 30, "the work")
        wait_for(lambda: ops.get(f"/v1/messages/{lost['id']}")["delivery"] == "receipted", 30, "its acknowledgement")
        worker.kill()
        restore(worker, copy)
        worker.start()

        def problems() -> list[str]:
            return [one for one in ops.get("/v1/status")["problems"] if one.startswith("worker was restored at")]

        wait_for(problems, 30, "the problem")
        assert "it may not know 1 open work with us any more" in problems()[0]
        exported = home.ctl("--name", "ops", "audit", "export").stdout
        assert b'"peer_restored"' in exported and b"may not know 1 open work" in exported
        assert (worker.state_of(known), worker.state_of(lost["work_id"])) == ("working", "")
        worker.post(f"/v1/works/{known}/complete")
        wait_for(lambda: ops.state_of(known) == "completed", 30, "the end of the work that both know")
        wait_for(lambda: ops.state_of(lost["work_id"]) == "canceled", 30, "the end of the work that one has forgotten")


@pytest.mark.parametrize(
    ("more", "end"), [({}, "busy"), ({"accept_within": 12}, "it cannot be handed over: the store was restored")]
)
def test_a_work_that_another_peer_got_after_the_backup_is_not_handed_over_again(
    home: Home, more: dict[str, Any], end: str
) -> None:
    quick = ("--discovery-interval", "2s", "--capability", "test.run")
    with Daemon(home, "one", *quick) as one, Daemon(home, "ops") as ops:
        wait_for(lambda: ops.knows("one"), 30, "the peer")
        first = ops.post("/v1/works", to_capability="test.run", text="once", reactions="all", **more)["work_id"]
        wait_for(lambda: one.state_of(first), 30, "the work")
        copy = backup(ops)
        with Daemon(home, "two", *quick) as two, Daemon(home, "three", *quick) as three:
            wait_for(lambda: ops.knows("two") and ops.knows("three"), 30, "the other peers")
            others = {"two": two, "three": three}
            if not more:
                one.post(f"/v1/works/{first}/reject", message="busy")
            wait_for(lambda: ops.get(f"/v1/works/{first}")["attempts"], 30, "the next peer")
            second = ops.get(f"/v1/works/{first}")["work"]
            has_it = others.pop(second["target"])
            wait_for(lambda: has_it.state_of(second["work_id"]), 30, "the work there")
            has_it.post(f"/v1/works/{second['work_id']}/accept")  # it has no limit for that any more
            ops.kill()
            restore(ops, copy)
            ops.start()
            wait_for(lambda: ops.knows("two") and ops.knows("three"), 30, "the other peers")
            has_it.post(f"/v1/works/{second['work_id']}/complete")
            if not more:  # one repeats its end only to who says something: its acknowledgement may be in the backup
                home.ctl("--name", "ops", "work", "say", first, "how far is it?")  # refused if it has ended
            wait_for(lambda: ops.state_of(first) in ("failed", "canceled"), 60, "the end of the work")
            done = ops.get(f"/v1/works/{first}")["work"]
            assert done["target"] == "one"
            assert end in done["message"]
            (other,) = others.values()
            assert other.get("/v1/works")["works"] == []


def test_works_end_that_a_peer_has_lost_with_its_store(home: Home) -> None:
    with Daemon(home, "ops") as ops, Daemon(home, "worker") as worker:
        sent = [ops.post("/v1/works", to="worker", text="before the loss") for _ in range(2)]
        submitted, accepted = (one["work_id"] for one in sent)
        wait_for(lambda: worker.state_of(accepted), 30, "the works")
        worker.post(f"/v1/works/{accepted}/accept")
        wait_for(lambda: ops.state_of(accepted) == "working", 30, "the acceptance")
        for one in sent:
            wait_for(lambda: ops.get(f"/v1/messages/{one['id']}")["delivery"] == "receipted", 30, "the answers")  # noqa: B023 - awaited at once
        worker.kill()
        shutil.rmtree(worker.store_path.parent)
        worker.start()
        wait_for(lambda: {ops.state_of(one) for one in (submitted, accepted)} == {"canceled"}, 30, "the ends")
        for one in sent:
            message = ops.get(f"/v1/messages/{one['id']}")
            assert (message["delivery"], message["delivery_detail"][:30]) == ("dead", "the receiver does not know it ")
        assert {item["message"]["id"] for item in ops.get("/v1/inbox")["items"]} == {one["id"] for one in sent}
        again = ops.post("/v1/works", to="worker", text="once more")["work_id"]
        wait_for(lambda: worker.state_of(again) == "submitted", 30, "the new work")


def test_the_first_start_of_a_peer_alarms_nobody(home: Home) -> None:
    """It is asked for a work that is as old as its store, and knows it."""
    with Daemon(home, "ops") as ops, Daemon(home, "worker") as worker:
        work = ops.post("/v1/works", to="worker", text="at once")["work_id"]
        wait_for(lambda: worker.state_of(work), 30, "the work")
        ops.stop()  # it asks again after a start
        ops.start()
        asked = "/v1/messages?kind=receipt&direction=in"
        wait_for(lambda: worker.get(asked)["messages"], 30, "the question")
        assert [one["outcome"] for one in worker.get(asked)["messages"]] == ["unchanged"]
        wait_for(lambda: ops.get("/v1/status")["outbox"].get("queued", 0) == 0, 30, "the answer")
        assert (ops.state_of(work), worker.state_of(work)) == ("submitted", "submitted")
        for daemon in (ops, worker):
            status = daemon.get("/v1/status")
            assert (status["problems"], status["restored"]) == ([], None)
