"""Several consumers of one inbox, over a daemon that is killed under them: one message, one lease, one ack."""

import http.client
import json
import random
import threading
import time
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from tests.support.daemons import Daemon, Home, HttpError, wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

MESSAGES = 500
CONSUMERS = 4
VISIBILITY = 5.0  # seconds: a lease lost with the daemon is free again after that, still within the test


class Held(NamedTuple):
    """One lease as its consumer saw it: from when it had the answer to when it asked to ack, in monotonic seconds."""

    seq: int
    lease: str
    message_id: str
    since: float
    until: float
    acked: bool


class Consumer:
    """Leases and acks until it is told to end."""

    def __init__(self, daemon: Daemon, seed: int, end: threading.Event) -> None:
        self.held: list[Held] = []
        self.failure: BaseException | None = None
        self._daemon = daemon
        self._rng = random.Random(seed)
        self._end = end
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                answer = self._ask("/v1/inbox/next", wait=0.5, visibility=VISIBILITY, concurrent=True)
                if answer is not None and answer["item"] is not None:
                    self._process(answer["item"])
        except BaseException as error:
            self.failure = error

    def _process(self, item: dict[str, Any]) -> None:
        since = time.monotonic()
        if self._rng.random() < 0.1:  # some work on it takes a while
            self._end.wait(0.02)
        until = time.monotonic()
        acked = None
        while acked is None and not self._end.is_set():
            acked = self._ack(item)
        self.held.append(Held(item["seq"], item["lease"], item["message"]["id"], since, until, bool(acked)))

    def _ack(self, item: dict[str, Any]) -> bool | None:
        try:
            answer = self._ask(f"/v1/inbox/{item['seq']}/ack", lease=item["lease"])
        except HttpError as error:
            assert error.answer["code"] == "lease_lost", error
            return False
        return None if answer is None else True

    def _ask(self, path: str, **body: Any) -> Any:
        """The answer; None when the daemon was not there."""
        try:
            return self._daemon.post(path, **body)
        except (OSError, http.client.HTTPException, json.JSONDecodeError):
            self._end.wait(0.02)
            return None
        except HttpError as error:
            if error.status == 503:
                return None
            raise


def test_competing_consumers_over_a_killed_daemon(home: Home) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    quick = ("--retry-first", "100ms", "--retry-ceiling", "500ms")
    worker, ops = Daemon(home, "worker", *quick).start(), Daemon(home, "ops", *quick).start()
    end = threading.Event()
    consumers = [Consumer(worker, seed + number, end) for number in range(CONSUMERS)]
    try:
        wait_for(lambda: ops.knows("worker"), 10, "presence")
        sent = [
            ops.post("/v1/messages", kind="say", to="worker", thread_id="thread_many", body={"text": str(n)})["id"]
            for n in range(MESSAGES)
        ]
        for consumer in consumers:
            consumer.start()
        for part in (MESSAGES // 3, MESSAGES // 2):
            wait_for(partial(has_acked, consumers, part), 120, "a part of it")
            worker.kill()
            worker.start()
        wait_for(lambda: has_acked(consumers, MESSAGES) or is_empty(worker), 120, "all of it")
        wait_for(lambda: is_empty(worker), 60, "the inbox to be empty")
        end.set()
        for consumer in consumers:
            consumer.join()
        check(consumers, sent, worker)
    finally:
        end.set()
        worker.stop()
        ops.stop()


def has_acked(consumers: list[Consumer], count: int) -> bool:
    return sum(held.acked for consumer in consumers for held in list(consumer.held)) >= count


def is_empty(worker: Daemon) -> bool:
    counts = worker.get("/v1/inbox?limit=1")["counts"]
    return bool(counts["ready"] + counts["leased"] == 0)


def check(consumers: list[Consumer], sent: list[str], worker: Daemon) -> None:
    """Nothing lost, one successful ack each, no two leases at one time, and the daemon agrees."""
    everything = [held for consumer in consumers for held in consumer.held]
    done = [held.message_id for held in everything if held.acked]
    assert sorted(done) == sorted(sent), "each message is acked once"
    by_message: dict[int, list[Held]] = {}
    for held in sorted(everything, key=lambda one: one.since):
        by_message.setdefault(held.seq, []).append(held)
    for leases in by_message.values():
        assert len({one.lease for one in leases}) == len(leases), "one lease was handed to two consumers"
        for first, second in pairwise(leases):
            assert second.since >= min(first.until, first.since + VISIBILITY), f"two leases at one time: {leases}"
    assert all(len(consumer.held) > MESSAGES // (4 * CONSUMERS) for consumer in consumers), "they did not compete"
    items = worker.get("/v1/inbox?state=acked&limit=1000")["items"]
    assert sorted(item["message"]["id"] for item in items) == sorted(sent)
