"""Daemons with durability "jetstream": what an absent peer misses, and every way in which the stream can go wrong."""

import threading
from pathlib import Path
from typing import Any

import pytest

from aghbus.daemon.jetstream.stream import STREAM
from tests.support.daemons import (
    ADMIT_ALL,
    DURABLE,
    NO_RETRY,
    Daemon,
    Home,
    HttpError,
    delivery,
    ops_and_worker,
    wait_for,
)
from tests.support.jetstream import admin
from tests.support.natsutil import NatsServer

QUICK = ("--retry-first", "100ms", "--retry-ceiling", "500ms")


def texts(daemon: Daemon, direction: str = "in") -> list[str]:
    """Texts of all conversation that the daemon has stored, in order."""
    found: list[str] = []
    since = 0
    while page := daemon.get(f"/v1/messages?kind=say&direction={direction}&since={since}&limit=1000")["messages"]:
        found += [message["envelope"]["body"]["text"] for message in page]
        since = page[-1]["seq"]
    return found


def problems(daemon: Daemon) -> str:
    return " | ".join(daemon.get("/v1/status")["problems"])


def published(daemon: Daemon) -> int:
    return int(daemon.get("/v1/status")["counters"]["outbox.published"])


def attached(daemon: Daemon) -> bool:
    return bool(daemon.get("/v1/status")["broker"]["jetstream"]["attached"])


def say(daemon: Daemon, to: str, text: str, **more: Any) -> str:
    return str(
        daemon.post("/v1/messages", kind="say", to=to, body={"text": text}, thread_id="thread_talk", **more)["id"]
    )


async def test_a_killed_peer_receives_missed_messages_that_are_still_fresh(home: Home, server: NatsServer) -> None:
    nats = ("--nats", server.url, *DURABLE)
    with ops_and_worker(home, *nats, *NO_RETRY) as (ops, worker):
        worker.kill()
        stale = say(ops, "worker", "stale", expires_in=4)  # published before
        fresh = [say(ops, "worker", f"number {n}", expires_in=600) for n in range(30)]
        wait_for(lambda: {delivery(ops, one) for one in fresh} == {"published"}, 30, "the stream to have them")
        # the next one is published again at once: its new header says that the stale one is settled
        wait_for(lambda: delivery(ops, stale) == "expired", 30, "the stale one to be stale")
        wait_for(lambda: published(ops) == 32, 30, "the second copy")
        ops.kill()  # whatever comes now comes from the stream
        worker.start()
        wait_for(lambda: len(texts(worker)) == 30, 20, "what was missed")
        assert texts(worker) == [f"number {n}" for n in range(30)]
        # the first acknowledgement went to a dead daemon; it is repeated at the next retry
        ops.args = (*nats, *QUICK)
        ops.start()
        wait_for(lambda: {delivery(ops, one) for one in fresh} == {"receipted"}, 60, "the acknowledgements")
        assert texts(worker) == [f"number {n}" for n in range(30)]


@pytest.mark.parametrize(("first", "second"), [((), DURABLE), (DURABLE, ())], ids=["core-to-stream", "stream-to-core"])
async def test_core_and_jetstream_peers_work_together(
    home: Home, server: NatsServer, first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    nats = ("--nats", server.url, *QUICK)
    with Daemon(home, "ops", *nats, *first) as ops, Daemon(home, "worker", *nats, *second) as worker:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
        plain = say(ops, "worker", "plain")
        wait_for(lambda: delivery(ops, plain) == "receipted", 20, "a commit acknowledgement")
        sent = ops.post("/v1/works", to="worker", text="together")
        wait_for(lambda: worker.get("/v1/works")["works"], 30, "the work")
        worker.post(f"/v1/works/{sent['work_id']}/accept")
        worker.post(f"/v1/works/{sent['work_id']}/complete", result={"n": 1})
        wait_for(lambda: ops.state_of(sent["work_id"]) == "completed", 30, "the end")
        wait_for(lambda: delivery(ops, sent["id"]) == "receipted", 20, "the acknowledgement")
        ops.post("/v1/messages", kind="say", body={"text": "to all"}, thread_id="thread_talk")
        worker.post("/v1/messages", kind="say", body={"text": "to all too"}, thread_id="thread_talk")
        wait_for(lambda: "to all" in texts(worker) and "to all too" in texts(ops), 30, "both broadcasts")
        assert sorted(texts(worker)) == ["plain", "to all", "together"]
        assert ops.post("/v1/whois", query="worker", wait=20)["peers"]
        assert worker.post("/v1/whois", query="ops", wait=20)["peers"]
        for daemon in (ops, worker):
            assert daemon.get("/v1/status")["counters"].get("identity.conflicts", 0) == 0


def test_the_embedded_broker_has_a_stream_too(home: Home) -> None:
    with ops_and_worker(home, *DURABLE) as (ops, worker):
        sent = ops.post("/v1/works", to="worker", text="hello")
        wait_for(lambda: delivery(ops, sent["id"]) == "receipted", 30, "the acknowledgement")
        status = worker.get("/v1/status")
        assert status["problems"] == []
        assert status["broker"]["jetstream"]["stream"] == STREAM
        assert status["broker"]["jetstream"]["attached"] is True


async def test_a_broker_without_jetstream_is_a_clear_problem_until_it_has_it(tmp_path: Path) -> None:
    async with NatsServer() as server:
        ops = Daemon(Home(tmp_path), "ops", "--nats", server.url, *DURABLE).start(wait=False)
        wait_for(ops.answers, 20, "the API")
        wait_for(lambda: "enable JetStream" in problems(ops), 20, "the problem")
        with pytest.raises(HttpError, match="503"):
            ops.get("/readyz")
        sent = say(ops, "worker", "kept")
        assert delivery(ops, sent) == "queued"
        server.kill()
        server.jetstream = True
        await server.start()
        wait_for(lambda: delivery(ops, sent) == "published", 30, "JetStream to be found")
        wait_for(lambda: not problems(ops), 20, "the problem to be solved")
        ops.wait_ready()
        assert ops.stop() == 0


async def test_a_restarted_broker_keeps_unread_messages(home: Home, server: NatsServer) -> None:
    nats = ("--nats", server.url, *DURABLE, *NO_RETRY)
    with ops_and_worker(home, *nats) as (ops, worker):
        worker.kill()
        sent = [say(ops, "worker", str(n)) for n in range(20)]
        wait_for(lambda: {delivery(ops, one) for one in sent} == {"published"}, 30, "the stream to have them")
        await server.restart()
        worker.start()
        wait_for(lambda: len(texts(worker)) == 20, 20, "what was kept")
        assert texts(worker) == [str(n) for n in range(20)]


async def test_a_deleted_stream_is_recreated_under_traffic(home: Home, server: NatsServer) -> None:
    nats = ("--nats", server.url, *DURABLE, *QUICK)
    with ops_and_worker(home, *nats) as (ops, worker):
        sent: list[str] = []
        stop = threading.Event()

        def talk() -> None:
            while not stop.is_set():
                sent.append(say(ops, "worker", str(len(sent))))
                stop.wait(0.05)

        talking = threading.Thread(target=talk)
        talking.start()
        try:
            for _ in range(3):
                before = len(texts(worker))
                wait_for(lambda: len(texts(worker)) > before, 20, "traffic")  # noqa: B023 - called at once
                async with admin(server) as api:
                    await api.call(f"STREAM.DELETE.{STREAM}")
                wait_for(lambda: attached(worker) and attached(ops), 20, "a new stream")
        finally:
            stop.set()
            talking.join()
        wait_for(lambda: {delivery(ops, one) for one in sent} == {"receipted"}, 60, "all acknowledged")
        assert sorted(texts(worker), key=int) == [str(n) for n in range(len(sent))]
        wait_for(lambda: not problems(ops) and not problems(worker), 20, "nothing to be wrong any more")


async def test_a_deleted_consumer_is_recreated_without_a_gap(home: Home, server: NatsServer) -> None:
    nats = ("--nats", server.url, *DURABLE, *NO_RETRY)
    with ops_and_worker(home, *nats) as (ops, worker):
        (consumer,) = worker.get("/v1/status")["broker"]["jetstream"]["consumers"]
        async with admin(server) as api:
            await api.call(f"CONSUMER.DELETE.{STREAM}.{consumer['name']}")
        for n in range(10):
            say(ops, "worker", str(n))
        wait_for(lambda: len(texts(worker)) == 10, 20, "everything")
        assert texts(worker) == [str(n) for n in range(10)]


async def test_a_full_stream_keeps_messages_queued_and_is_reported(tmp_path: Path, server: NatsServer) -> None:
    with Daemon(
        Home(tmp_path), "ops", "--nats", server.url, *DURABLE, *NO_RETRY, "--jetstream-max-bytes", "16MiB"
    ) as ops:
        sent = [say(ops, "absent", "x" * 900_000) for _ in range(20)]
        wait_for(lambda: "it is full" in problems(ops), 20, "the problem")

        def states() -> list[str]:
            return [delivery(ops, one) for one in sent]

        # The batch that meets the problem reports it, before its other messages are noted as published.
        wait_for(lambda: states().count("published") >= 10, 20, "what found room to be noted")
        assert states().count("queued") >= 2
        assert "--max-bytes" in problems(ops)
        assert "takes no messages since 20" in problems(ops)
        assert "at the latest at 20" in problems(ops)
        waiting = next(one for one in sent if delivery(ops, one) == "queued")
        detail = ops.get(f"/v1/messages/{waiting}")["delivery_detail"]
        assert "takes no messages since 20" in detail
        assert "; tried until 20" in detail
        async with admin(server) as api:
            await api.call(f"STREAM.PURGE.{STREAM}")
        wait_for(lambda: {delivery(ops, one) for one in sent} == {"published"}, 30, "all to be published")
        wait_for(lambda: not problems(ops), 30, "the problem to be solved")


async def test_full_stream_evicts_read_messages_and_keeps_unread_ones(home: Home, server: NatsServer) -> None:
    nats = ("--nats", server.url, *DURABLE, *NO_RETRY, *ADMIT_ALL, "--jetstream-max-bytes", "16MiB")
    with (
        Daemon(home, "ops", *nats) as ops,
        Daemon(home, "worker", *nats) as worker,
        Daemon(home, "away", *nats) as away,
    ):
        wait_for(lambda: ops.knows("worker", "away"), 30, "presence")
        away.kill()
        unread, read = [], []
        for number in range(48):  # 43 MB
            read.append(say(ops, "worker", f"{number}" + "x" * 900_000))
            if number % 12 == 0:
                unread.append(say(ops, "away", f"unread {number}"))
        wait_for(lambda: {delivery(ops, one) for one in read} == {"receipted"}, 120, "all to be read")
        assert {delivery(ops, one) for one in unread} == {"published"}
        wait_for(lambda: not problems(ops), 30, "the problem to be solved")
        away.start()
        wait_for(lambda: len(texts(away)) == len(unread), 30, "the unread ones")
        assert len(texts(worker)) == len(read)


async def test_a_kill_between_commit_and_ack_causes_no_second_delivery(home: Home, server: NatsServer) -> None:
    nats = ("--nats", server.url, *DURABLE, *NO_RETRY)
    with ops_and_worker(home, *nats) as (ops, worker):
        worker.stop()
        worker.env["AGHD_FAILPOINT"] = "receive.committed"
        worker.start(wait=False)
        say(ops, "worker", "once")
        assert worker.process is not None
        assert worker.process.wait(60) == -9
        del worker.env["AGHD_FAILPOINT"]
        say(ops, "worker", "behind it")
        worker.start()
        wait_for(lambda: "behind it" in texts(worker), 20, "the next one")

        def settled() -> bool:
            (consumer,) = worker.get("/v1/status")["broker"]["jetstream"]["consumers"]
            return bool(consumer["ack_pending"] == 0 and consumer["pending"] == 0)

        wait_for(settled, 20, "the redelivery to be settled")
        assert texts(worker) == ["once", "behind it"]
        assert worker.get("/v1/status")["inbox"]["ready"] == 2


async def test_hundreds_of_messages_survive_kills_of_the_receiver(home: Home, server: NatsServer) -> None:
    nats = ("--nats", server.url, *DURABLE)
    with ops_and_worker(home, *nats) as (ops, worker):
        sent: list[str] = []
        failure: list[BaseException] = []

        def talk() -> None:
            try:
                for n in range(600):
                    sent.append(say(ops, "worker", str(n)))
            except (OSError, HttpError) as error:
                failure.append(error)

        talking = threading.Thread(target=talk)
        talking.start()
        for mark in (100, 250, 400):
            wait_for(lambda: len(sent) >= mark, 60, "traffic")  # noqa: B023 - called at once
            worker.kill()
            worker.start()
        talking.join()
        assert not failure
        wait_for(lambda: len(texts(worker)) >= 600, 60, "everything")
        assert sorted(texts(worker), key=int) == [str(n) for n in range(600)]
        assert worker.get("/v1/status")["inbox"]["ready"] == 600


async def test_second_daemon_with_the_same_peer_id_is_refused(home: Home, server: NatsServer) -> None:
    nats = ("--nats", server.url, *DURABLE)
    with Daemon(home, "ops", *nats) as ops:
        second = Daemon(home, "other", "--peer-id", "ops", *nats).start(wait=False)
        try:
            wait_for(second.answers, 20, "its API")
            wait_for(lambda: "another daemon receives as ops" in problems(second), 20, "the report")
            assert ops.get("/readyz")["ready"]
        finally:
            assert second.stop() == 0
