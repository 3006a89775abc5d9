"""A peer in a process of its own that sends prepared envelopes: `python -m bench.harness.pump JOB` (JSON), result as JSON.

Jobs, by `do`:
- `deliver`: as fast as a consumer on the event stream of the daemon gets them, with at most `window` on their way
- `commit`:  as fast as the broker takes them, until the daemon has committed all (asked twenty times a second)
- `blast`:   as fast as the broker takes them; answers when it began
- `pace`:    `rate` a second; with `reply`, the milliseconds until each was acknowledged

With `signed` the envelopes of `deliver` and `commit` are signed, before the clock starts.
"""

import json
import select
import sys
import time
from typing import Any, Final
from urllib.parse import quote

from bench.harness.envelopes import MIX, Maker
from bench.harness.proofs import SIGNER
from bench.harness.wire import Events, RawApi, RawNats, frame

WINDOW: Final = 2_048  # half of the daemon's receive queue; one sender may fill three quarters of it
_BURST: Final = 64  # frames of one write
_LOOK: Final = 0.05  # seconds between two looks at the store
_PATIENCE: Final = 60.0  # seconds without any progress


def maker_of(job: dict[str, Any]) -> Maker:
    """Who sends, to whom, and whether it signs."""
    return Maker(job.get("sender", "flooder"), job["to"], SIGNER if job.get("signed") else None)


def frames_of(job: dict[str, Any], maker: Maker) -> list[bytes]:
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
        while api.call("GET", "/v1/status")["store"]["last_seq"] - before < len(frames):
            if time.perf_counter() - started > _PATIENCE:
                raise RuntimeError("messages were lost on their way into the store")
            time.sleep(_LOOK)
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


def pace(job: dict[str, Any]) -> list[float]:
    """Milliseconds from each write to its acknowledgement, of messages at a steady rate; the first tenth warms up."""
    maker = Maker(job.get("sender", "pacer"), job["to"])
    subject = job.get("subject") or maker.subject
    count = int(job["rate"] * job["seconds"])
    reply = f"_INBOX.bench{time.time_ns()}"
    frames = [frame(subject, maker.say(), f"{reply}.{number}" if job.get("reply") else "") for number in range(count)]
    taken: list[float] = []
    written: dict[bytes, float] = {}
    with RawNats(job["nats"]) as nats:
        if job.get("reply"):
            nats.subscribe(f"{reply}.*")
        start = time.perf_counter()
        for number, one in enumerate(frames):
            due = start + number / job["rate"]
            while (left := due - time.perf_counter()) > 0:
                _collect(nats, written, taken, left)
            written[_key(one)] = time.perf_counter()
            nats.socket.sendall(one)
        end = time.perf_counter() + 2
        while job.get("reply") and written and time.perf_counter() < end:
            _collect(nats, written, taken, 0.1)
    return taken[len(taken) // 10 :]


def _key(raw: bytes) -> bytes:
    at = raw.index(b'"msg_')
    return raw[at : raw.index(b'"', at + 1)]


def _collect(nats: RawNats, written: dict[bytes, float], taken: list[float], left: float) -> None:
    """Answers that come within `left` seconds; each names the envelope's id."""
    if not select.select([nats.socket], [], [], left)[0]:
        return
    payloads, now = nats.receive(), time.perf_counter()
    for payload in payloads:
        if (began := written.pop(_key(payload), None)) is not None:
            taken.append((now - began) * 1000)


def main() -> None:
    """Do the one job that the command line has."""
    job = json.loads(sys.argv[1])
    result = {"deliver": deliver, "commit": commit, "blast": blast, "pace": pace}[job["do"]](job)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
