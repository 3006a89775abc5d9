"""The event stream over daemon kills, and where retention has removed what was asked for; and what retention never removes."""

import http.client
import json
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.daemons import Daemon, Home, UnixClient, wait_for
from tests.support.ledger import all_messages

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

KILLS = 6
QUICK = ("--retry-first", "100ms", "--retry-ceiling", "500ms")
BIG = "x" * 900_000  # characters of a message: nineteen of them are over the least size of a store


class Follower:
    """Reads `/v1/events` and reconnects with Last-Event-ID, as the HTML standard says; `seen` are all events, in order."""

    def __init__(self, daemon: Daemon, *, since: int) -> None:
        self.seen: list[dict[str, Any]] = []
        self.connections = 0
        self.failure: BaseException | None = None
        self._daemon = daemon
        self._since = since
        self._last: str | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """It ends at the next event, or when its daemon goes."""
        self._end.set()

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                try:
                    for event in self._once():
                        self.seen.append(event)
                        if self._end.is_set():
                            return
                except (OSError, http.client.HTTPException):
                    self._end.wait(0.02)
        except BaseException as error:
            self.failure = error

    def _once(self) -> Iterator[dict[str, Any]]:
        client = UnixClient(self._daemon.socket_path)
        try:
            headers = {"Last-Event-ID": self._last} if self._last is not None else {}
            client.request("GET", f"/v1/events?since={self._since}", headers=headers)
            response = client.getresponse()
            assert response.status == 200, response.read()
            self.connections += 1
            name = ""
            while line := response.readline():
                if line.startswith(b"id:"):
                    name = line[3:].strip().decode()
                elif line.startswith(b"data:") and line.endswith(b"\n"):
                    event = json.loads(line[5:])
                    assert response.readline() == b"\n"  # an event counts only when it is complete
                    self._last = name
                    yield event
        finally:
            client.close()


def test_a_follower_over_kills_sees_everything_once(home: Home) -> None:
    worker, ops = Daemon(home, "worker", *QUICK).start(), Daemon(home, "ops", *QUICK).start()
    follower = Follower(worker, since=0)
    try:
        wait_for(lambda: ops.knows("worker"), 10, "presence")
        follower.start()
        for round_ in range(KILLS):
            for number in range(40):
                say(ops, f"{round_} {number}")
            wait_for(partial(has_seen, follower, 40 * round_ + 20), 60, "some events")
            worker.kill()
            worker.start()
        wait_for(lambda: len(follower.seen) >= 40 * KILLS, 60, "all events")
        say(ops, "the end")
        wait_for(lambda: text_of(follower.seen[-1]) == "the end", 20, "the last event")
        assert follower.failure is None
        said = [text_of(event) for event in follower.seen if event["message"]["kind"] == "say"]
        assert sorted(said) == sorted([f"{r} {n}" for r in range(KILLS) for n in range(40)] + ["the end"])
        seqs = [event["seq"] for event in follower.seen]
        assert seqs == sorted(set(seqs))
        assert seqs == [message["seq"] for message in all_messages(worker)]
        assert follower.connections >= KILLS
    finally:
        follower.stop()
        worker.stop()
        ops.stop()


def test_a_pruned_gap_is_an_event_and_the_unanswered_is_never_pruned(home: Home) -> None:
    small = ("--store-retention-size", "16777216")
    worker, ops = Daemon(home, "worker", *QUICK).start(), Daemon(home, "ops", *QUICK, *small).start()
    try:
        wait_for(lambda: ops.knows("worker"), 10, "presence")
        answered = [say(ops, f"{n} {BIG}") for n in range(10)]
        wait_for(lambda: receipted(ops, answered), 60, "the worker's acknowledgements")
        follower = Follower(ops, since=0)
        follower.start()
        wait_for(lambda: len(follower.seen) >= 3, 30, "the beginning of the stream")
        follower.stop()
        worker.kill()
        waiting = [say(ops, f"{n} {BIG}") for n in range(10, 32)]
        wait_for(lambda: ops.get("/v1/messages?limit=1")["pruned_through"] > 0, 120, "retention to come by")
        # Out already, or held back behind what the silent worker has not answered.
        assert {ops.get(f"/v1/messages/{one}")["delivery"] for one in waiting} <= {"published", "queued"}
        late = Follower(ops, since=0)
        late.start()
        wait_for(lambda: late.seen, 30, "the gap")
        gap = late.seen[0]
        assert (gap["type"], gap["pruned_from"], gap["message"]) == ("gap", 1, None)
        assert gap["seq"] == ops.get("/v1/messages?limit=1")["pruned_through"]
        late.stop()
        worker.start()
        wait_for(lambda: receipted(ops, waiting), 60, "everything that waited to arrive")
        stored = {message["id"] for message in all_messages(worker)}
        assert set(answered) | set(waiting) <= stored
    finally:
        worker.stop()
        ops.stop()


def has_seen(follower: Follower, count: int) -> bool:
    return len(follower.seen) >= count


def say(daemon: Daemon, text: str) -> str:
    return str(
        daemon.post("/v1/messages", kind="say", to="worker", thread_id="thread_stream", body={"text": text})["id"]
    )


def receipted(daemon: Daemon, ids: list[str]) -> bool:
    return all(daemon.get(f"/v1/messages/{one}")["delivery"] == "receipted" for one in ids)


def text_of(event: dict[str, Any]) -> str:
    return str((event["message"] or {}).get("envelope", {}).get("body", {}).get("text"))
