"""What both sides are told of messages that expire, and of ends of a work that cross."""

import contextlib
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import DURABLE, Daemon, Home, HttpError, delivery, ops_and_worker, wait_for
from tests.support.foreign import foreign_peer
from tests.support.natsutil import NatsServer, pause

QUICK = ("--retry-first", "100ms", "--retry-ceiling", "300ms")
COMPLETED_THERE = "refused: by the receiver: work_closed, the work is completed there"


def notices(daemon: Daemon) -> dict[str, str]:
    """What the inbox says of own messages, by their id."""
    items = daemon.get("/v1/inbox")["items"]
    return {item["message"]["id"]: item["last_error"] for item in items if item["message"]["direction"] == "out"}


def statuses(daemon: Daemon) -> set[str]:
    """Of the receipts from and to this daemon."""
    receipts = daemon.get("/v1/messages?kind=receipt")["messages"]
    return {message["envelope"]["body"]["status"] for message in receipts}


def in_stream(daemon: Daemon) -> tuple[int, int]:
    """What its consumer has not acknowledged, and not got."""
    (consumer,) = daemon.get("/v1/status")["broker"]["jetstream"]["consumers"]
    return consumer["ack_pending"], consumer["pending"]


def detail(daemon: Daemon, message_id: str) -> Any:
    return daemon.get(f"/v1/messages/{message_id}")["delivery_detail"]


@pytest.mark.parametrize("durability", [(), DURABLE], ids=["core", "jetstream"])
async def test_an_expired_opening_leaves_no_work_behind(tmp_path: Path, durability: tuple[str, ...]) -> None:
    """The worker is stopped until the opening has expired; what was said in its work is fresh for a day."""
    async with NatsServer(jetstream=True) as server:
        with ops_and_worker(Home(tmp_path), "--nats", server.url, *QUICK, *durability) as (ops, worker):
            assert worker.process is not None
            await pause(worker.process.pid)
            try:
                opening = ops.post("/v1/works", to="worker", work_id="work_short", text="restore host A", expires_in=1)
                more = ops.post("/v1/works/work_short/say", message="use snapshot 17, now")
                wait_for(lambda: delivery(ops, more["id"]) == "dead", 30, "the message after it to be given up")
            finally:
                worker.process.send_signal(signal.SIGCONT)
            probe = ops.post("/v1/works", to="worker", text="are you there?", thread_id=opening["thread_id"])
            wait_for(lambda: delivery(ops, probe["id"]) == "receipted", 30, "an answer")
            judged = {(kept["sender"], kept["reason"]) for kept in worker.get("/v1/quarantine")["quarantined"]}
            assert judged == {("ops", "expired")}, "the opening has reached the worker"
            wait_for(lambda: "expired" in statuses(ops), 30, "its receipt, which leaves the opening expired")
            assert worker.state_of("work_short") == ""
            assert [work["work_id"] for work in worker.get("/v1/works")["works"]] == [probe["work_id"]]
            assert [item["message"]["id"] for item in worker.get("/v1/inbox")["items"]] == [probe["id"]]
            late = "no answer before it expired"
            unopened = f"its work was not opened: {late}"
            assert (delivery(ops, opening["id"]), detail(ops, opening["id"])) == ("expired", late)
            assert (delivery(ops, more["id"]), detail(ops, more["id"])) == ("dead", unopened)
            assert notices(ops) == {opening["id"]: f"expired: {late}", more["id"]: f"dead: {unopened}"}


async def test_another_implementation_gets_nothing_after_an_expired_opening(tmp_path: Path) -> None:
    async with NatsServer() as server, foreign_peer(server.url, "outsider") as outsider:
        with Daemon(Home(tmp_path), "ops", "--nats", server.url, "--retry-first", "1h", "--retry-ceiling", "1h") as ops:
            opening = ops.post("/v1/works", to="outsider", work_id="work_short", text="soon")
            more = ops.post("/v1/works/work_short/say", message="one thing more")
            assert (await outsider.expect(text="one thing more"))["ext"]["aghbus.continues"] is True
            late = {"for_id": opening["id"], "status": "expired", "reason_code": "expired"}
            place = {"surface": "thread", "thread_id": opening["thread_id"], "work_id": "work_short"}
            await outsider.publish(outsider.envelope("receipt", late, to="ops", reply_to=opening["id"], **place))
            wait_for(lambda: delivery(ops, more["id"]) == "dead", 30, "the message after it to be given up")
            assert detail(ops, more["id"]) == "its work was not opened: by a receipt: expired"


async def test_an_answer_to_a_copy_does_not_stay_in_the_stream(tmp_path: Path) -> None:
    """The message before it in its flow has expired: a receipt that named it would come back for a minute."""
    async with NatsServer(jetstream=True) as server, foreign_peer(server.url, "outsider") as outsider:
        with ops_and_worker(Home(tmp_path), "--nats", server.url, *QUICK, *DURABLE) as (ops, worker):
            opening = worker.post("/v1/works", to="ops", work_id="work_one", text="go")
            wait_for(lambda: ops.state_of("work_one"), 30, "the work")
            copy = ops.get(f"/v1/messages/{opening['id']}")["envelope"]
            assert worker.process is not None
            await pause(worker.process.pid)
            try:
                kept = ops.post("/v1/works/work_one/say", message="one")
                short = ops.post("/v1/works/work_one/say", message="two", expires_in=1)
                await outsider.publish(json.dumps(copy).encode(), to="ops")
                wait_for(lambda: ops.get("/v1/status")["counters"].get("receipts.unstored"), 30, "the answer")
                wait_for(lambda: delivery(ops, short["id"]) == "expired", 30, "the expiry")
            finally:
                worker.process.send_signal(signal.SIGCONT)
            wait_for(lambda: delivery(ops, kept["id"]) == "receipted", 30, "the message before")
            wait_for(lambda: in_stream(worker) == (0, 0), 20, "the stream to be read")
            assert worker.get("/v1/status")["counters"].get("receive.early", 0) == 0


async def test_each_agent_is_told_how_the_other_side_ended_the_work(tmp_path: Path) -> None:
    async with NatsServer() as server:
        with ops_and_worker(Home(tmp_path), "--nats", server.url, *QUICK) as (ops, worker):
            verbs = {"complete": "completed", "reject": "failed", "accept": "canceled"}
            for verb in verbs:
                ops.post("/v1/works", to="worker", work_id=f"work_{verb}", text=verb)
                wait_for(lambda verb=verb: worker.state_of(f"work_{verb}"), 30, "the work")  # type: ignore[misc]
            server.kill()
            wait_for(lambda: ops.get("/v1/status")["broker"]["state"] == "down", 30, "the loss of the broker")
            ours = {ops.post(f"/v1/works/work_{verb}/cancel")["id"]: verb for verb in verbs}
            theirs = {worker.post(f"/v1/works/work_{verb}/{verb}")["id"]: verb for verb in verbs}
            await server.restart()
            told = {one: why for one, why in ours.items() if why != "accept"}  # it ended as the agent wanted
            wait_for(lambda: notices(ops).keys() == told.keys(), 30, "the notices of the initiator")
            wait_for(lambda: notices(worker).keys() == theirs.keys(), 30, "the notices of the target")
            there = "refused: by the receiver: work_closed, the work is {} there"
            assert notices(ops) == {one: there.format(verbs[verb]) for one, verb in told.items()}
            assert set(notices(worker).values()) == {there.format("canceled")}
            assert ops.state_of("work_complete") == "canceled"


async def test_the_initiator_is_told_of_an_end_after_its_opening_expired(tmp_path: Path) -> None:
    """The worker takes the opening in time. Its answers come after the initiator's daemon has canceled the work."""
    async with NatsServer() as server:
        flags, home = ("--nats", server.url, *QUICK), Home(tmp_path)
        ops = Daemon(home, "ops", *flags, env={"AGHD_FAILPOINT": "publish.confirmed"})
        with Daemon(home, "worker", *flags) as worker:
            ops.start()
            wait_for(lambda: ops.knows("worker"), 30, "presence")
            with contextlib.suppress(HttpError, OSError):
                ops.post("/v1/works", to="worker", work_id="work_short", text="quickly", expires_in=3)
            wait_for(lambda: worker.state_of("work_short"), 30, "the work")
            assert ops.process is not None
            ops.process.wait(30)
            answer = worker.post("/v1/works/work_short/complete", result={"paid": 100})["id"]
            server.kill()
            del ops.env["AGHD_FAILPOINT"]
            wait_for(
                lambda: time.time() > worker.get("/v1/works/work_short")["work"]["opened_ms"] / 1000 + 4, 30, "its end"
            )
            ops.start(wait=False)
            try:
                wait_for(lambda: canceled(ops), 30, "the expiry")
                ((opening, why),) = notices(ops).items()
                assert why == "expired: no answer before it expired"
                await server.restart()
                wait_for(lambda: len(notices(ops)) == 2, 30, "what the other side says")
                assert COMPLETED_THERE in notices(ops).values()
                assert ops.state_of("work_short") == "canceled"
                assert worker.state_of("work_short") == "completed"
                wait_for(lambda: delivery(worker, answer) == "refused", 30, "the end of the late answer")
                # Where our end reaches the worker first, its answer is not sent any more.
                sent = ops.get("/v1/messages?work=work_short&kind=trace&direction=in")["messages"]
                assert delivery(ops, opening) == ("receipted" if sent else "expired")
                wait_for(lambda: len(notices(worker)) == 1, 30, "the notice of the target")
            finally:
                ops.stop()


def canceled(daemon: Daemon) -> bool:
    with contextlib.suppress(OSError):
        return daemon.state_of("work_short") == "canceled"
    return False
