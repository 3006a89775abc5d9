"""A peer in its own process that sends prepared envelopes: `python -m bench.harness.pump JOB` (JSON), result as JSON.

Jobs, by `do`:
- `deliver`: as fast as a consumer on the event stream of the daemon gets them, with at most `window` on their way
- `commit`:  as fast as the broker takes them, until the daemon has committed all (asked twenty times a second)
- `blast`:   as fast as the broker takes them; answers when it began
- `at_rate`: `count` at `rate` a second; the milliseconds until each was acknowledged
- `press`:   `rate` a second until it is told to stop; says when it runs, and how many a second it has reached
- `greet`:   greets of `peers` peers, each every `interval` seconds, until its standard input ends; says when all have greeted once
- `follow`:  reads the event stream of the daemon until its standard input ends, as an agent that waits for messages does

With `signed` the envelopes of `deliver` and `commit` are signed, before the clock starts; with `mix` they are of several kinds;
with `random_ids` their ids are not in the order of time; with `threads` each is of a thread of its own.
"""

import itertools
import json
import select
import sys
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from aghbus.protocol.agh.nats.names import inbox
from bench.harness.envelopes import MIX, EnvelopeMaker
from bench.harness.proofs import SIGNER
from bench.harness.wire import Events, RawApi, RawNats, frame

WINDOW: Final = 2_048  # half of the daemon's receive queue; one sender may fill three quarters of it
_BURST: Final = 64  # frames of one write
_LOOK: Final = 0.05  # seconds between two looks at the store
_PATIENCE: Final = 60.0  # seconds without any progress
_UNANSWERED: Final = (
    512  # acknowledgements that may be awaited: half of the answers that a daemon has under way at most
)
_BESIDE: Final = 64  # the same of a load that something else is measured beside
_RUNNING: Final = 500  # messages after which such a load counts as running


def maker_of(job: dict[str, Any]) -> EnvelopeMaker:
    """The maker of the job's envelopes: sender, receiver and signer."""
    signer = SIGNER if job.get("signed") else None
    how = {name: job.get(name, False) for name in ("random_ids", "threads")}
    return EnvelopeMaker(job.get("sender", "flooder"), job["to"], signer, **how)


def frames_of(job: dict[str, Any], maker: EnvelopeMaker) -> list[bytes]:
    """The prepared bytes of all messages, and the works of the mix opened beforehand."""
    if job.get("mix"):
        api = RawApi(job["socket"])
        ask = {"to": maker.sender, "text": "x" * 200}
        works = [api.call("POST", "/v1/works", ask) for _ in range(job["count"] // MIX)]
        return [frame(maker.subject, raw) for work in works for raw in maker.around(work)]
    return [frame(maker.subject, maker.say()) for _ in range(job["count"])]


def deliver(job: dict[str, Any]) -> float:
    """Messages a second, from the first write to the last event."""
    maker = maker_of(job)
    frames = frames_of(job, maker)
    events = Events(job["socket"], f"direction=in&peer={quote(maker.sender)}")
    with RawNats(job["nats"]) as nats:
        sent = got = 0
        started = time.perf_counter()
        while got < len(frames):
            room = WINDOW - (sent - got)
            burst = frames[sent : sent + min(room, _BURST)]
            if burst:
                nats.socket.sendall(b"".join(burst))
                sent += len(burst)
            if not burst or select.select([events.socket], [], [], 0)[0]:
                got += events.count()
        return len(frames) / (time.perf_counter() - started)


def commit(job: dict[str, Any]) -> float:
    """Messages a second, from the first write until the store has them all."""
    frames = frames_of(job, maker_of(job))
    api = RawApi(job["socket"])
    before = api.call("GET", "/v1/status")["store"]["last_seq"]
    with RawNats(job["nats"]) as nats:
        started = time.perf_counter()
        nats.socket.sendall(b"".join(frames))
        nats.flush()
        done, moved = 0, started
        while done < len(frames):
            if time.perf_counter() - moved > _PATIENCE:
                raise RuntimeError(f"{len(frames) - done} messages were lost on their way into the store")
            time.sleep(_LOOK)
            now_done = api.call("GET", "/v1/status")["store"]["last_seq"] - before
            if now_done > done:
                done, moved = now_done, time.perf_counter()
        return len(frames) / (time.perf_counter() - started)


def blast(job: dict[str, Any]) -> float:
    """Monotonic seconds at the first write."""
    bare = job.get("subject")
    frames = [frame(bare, b"x" * job["size"])] * job["count"] if bare else frames_of(job, maker_of(job))
    whole = b"".join(frames)
    with RawNats(job["nats"]) as nats:
        started = time.monotonic()
        nats.socket.sendall(whole)
        nats.flush()
    return started


def at_rate(job: dict[str, Any]) -> list[float]:
    """Milliseconds from each write to its acknowledgement, of messages at a steady rate; the first tenth warms up.

    Every message is waited for, however slow the machine is. A write that had to wait for room counts from when it was due.
    """
    maker = EnvelopeMaker("pacer", job["to"])
    subject = job.get("subject") or maker.subject
    reply = f"{inbox(maker.sender, 'ack')}.{time.time_ns()}"  # the one form of reply subject that a daemon answers
    frames = [frame(subject, maker.say(), f"{reply}.{number}") for number in range(job["count"])]
    taken: list[float] = []
    written: dict[bytes, float] = {}
    with RawNats(job["nats"]) as nats:
        nats.subscribe(f"{reply}.*")
        start = time.perf_counter()
        for number, one in enumerate(frames):
            due = start + number / job["rate"]
            while (left := due - time.perf_counter()) > 0:
                _collect(nats, written, taken, left)
            full = len(written) >= _UNANSWERED
            while len(written) >= _UNANSWERED:
                _await(nats, written, taken)
            written[_key(one)] = due if full else time.perf_counter()
            nats.socket.sendall(one)
        while written:
            _await(nats, written, taken)
    return taken[len(taken) // 10 :]


def press(job: dict[str, Any]) -> float:
    """Messages a second that were sent until standard input had a line or ended. With _BESIDE of them unanswered it waits: on a
    machine that cannot keep the rate the load gives way, and what is measured beside it still comes to an end."""
    maker = EnvelopeMaker("neighbour", job["to"])
    reply = f"{inbox(maker.sender, 'ack')}.{time.time_ns()}"
    written: dict[bytes, float] = {}
    sent, told = 0, False
    with RawNats(job["nats"]) as nats:
        nats.subscribe(reply)
        start = time.perf_counter()
        while not told:
            now = time.perf_counter()
            left = start + sent / job["rate"] - now
            if left > 0 or len(written) >= _BESIDE:
                readable = select.select([sys.stdin, nats.socket], [], [], left if left > 0 else _PATIENCE)[0]
                told = sys.stdin in readable
                if nats.socket in readable:
                    _collect(nats, written, [], 0)
                continue
            one = frame(maker.subject, maker.say(), reply)
            written[_key(one)] = now
            nats.socket.sendall(one)
            sent += 1
            if sent == _RUNNING:
                print(json.dumps("running"), flush=True)
        return sent / (time.perf_counter() - start)


def greet(job: dict[str, Any]) -> None:
    """Prints `"running"` after the first greet of every peer."""
    makers = [EnvelopeMaker(f"quiet-{number:03d}", None) for number in range(job["peers"])]
    with RawNats(job["nats"]) as nats:
        for maker in makers:
            nats.socket.sendall(frame(maker.subject, maker.greet()))
        nats.flush()
        print(json.dumps("running"), flush=True)
        start = time.monotonic()
        for number in itertools.count():
            due = start + number * job["interval"] / len(makers)
            if select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))[0]:
                return
            maker = makers[number % len(makers)]
            nats.socket.sendall(frame(maker.subject, maker.greet()))


def follow(job: dict[str, Any]) -> None:
    """Prints `"running"` once the stream is open."""
    events = Events(job["socket"], "direction=in")
    print(json.dumps("running"), flush=True)
    while sys.stdin not in select.select([sys.stdin, events.socket], [], [])[0]:
        events.count()


def _key(raw: bytes) -> bytes:
    at = raw.index(b'"msg_')
    return raw[at : raw.index(b'"', at + 1)]


def _collect(nats: RawNats, written: dict[bytes, float], taken: list[float], left: float) -> None:
    """Read for `left` seconds; an acknowledgement has the envelope's id."""
    if not select.select([nats.socket], [], [], left)[0]:
        return
    payloads, now = nats.receive(), time.perf_counter()
    for payload in payloads:
        if (began := written.pop(_key(payload), None)) is not None:
            taken.append((now - began) * 1000)


def _await(nats: RawNats, written: dict[bytes, float], taken: list[float]) -> None:
    """One more read with acknowledgements that are still missing; RuntimeError when none comes any more."""
    before, end = len(taken), time.perf_counter() + _PATIENCE
    while len(taken) == before:
        if (left := end - time.perf_counter()) <= 0:
            raise RuntimeError(f"{len(written)} messages were never acknowledged")
        _collect(nats, written, taken, left)


def main() -> None:
    """Do the one job that the command line has."""
    job = json.loads(sys.argv[1])
    ways: dict[str, Callable[[dict[str, Any]], object]] = {
        one.__name__: one for one in (deliver, commit, blast, at_rate, press, greet, follow)
    }
    print(json.dumps(ways[job["do"]](job)), flush=True)


if __name__ == "__main__":
    main()
