"""An agent's side of the API in a process of its own: `python -m bench.harness.caller JOB` (JSON), result as JSON.

Jobs, by `do`:
- `send`:  says to `to` over `connections` at a time, until a subscriber on the bus has them all; messages a second
- `whois`: milliseconds of `POST /v1/whois`, one after the other
- `works`: works opened at one daemon and carried out at the other, one after the other; milliseconds from request to completed
- `crowd`: the same with `flight` works at a time; works a second
"""

import json
import selectors
import sys
import threading
import time
from typing import Any, Final

from aghbus.protocol.identifiers import subject_for
from bench.harness.envelopes import CHANNEL, WORKSPACE
from bench.harness.wire import Events, RawApi, RawNats, request_bytes, take_answer

_WAIT: Final = 20  # seconds that a consumer waits for a work
_READ: Final = 1 << 16
_TEXT: Final = "x" * 320  # gives an envelope of about 614 bytes


def send(job: dict[str, Any]) -> float:
    """Messages a second, from the first request until the last is on the bus."""
    ask = {"kind": "say", "to": job["to"], "thread_id": "thread_bench", "body": {"text": _TEXT}}
    request = request_bytes("POST", "/v1/messages", ask)
    picker = selectors.DefaultSelector()
    for _ in range(job["connections"]):
        picker.register(RawApi(job["socket"]).socket, selectors.EVENT_READ, bytearray())
    with RawNats(job["nats"]) as nats:
        nats.subscribe(subject_for(WORKSPACE, CHANNEL, job["to"]))
        picker.register(nats.socket, selectors.EVENT_READ, None)
        started = time.perf_counter()
        asked = seen = 0
        for key in list(picker.get_map().values()):
            if key.data is not None and asked < job["count"]:
                key.fileobj.send(request)  # type: ignore[union-attr]
                asked += 1
        while seen < job["count"]:
            for key, _ in picker.select(30):
                if key.data is None:
                    seen += len(nats.receive())
                    continue
                key.data.extend(key.fileobj.recv(_READ))  # type: ignore[union-attr]
                if (answer := take_answer(key.data)) is None:
                    continue
                if answer[0] != 201:
                    raise RuntimeError(answer[1].decode())
                if asked < job["count"]:
                    key.fileobj.send(request)  # type: ignore[union-attr]
                    asked += 1
        return float(seen / (time.perf_counter() - started))


def whois(job: dict[str, Any]) -> list[float]:
    """Milliseconds of each call; the first tenth warms up."""
    api = RawApi(job["socket"])
    taken = []
    for _ in range(job["count"] + job["count"] // 10):
        started = time.perf_counter()
        answer = api.call("POST", "/v1/whois", {"query": job["query"], "first": True})
        taken.append((time.perf_counter() - started) * 1000)
        if not answer["peers"]:
            raise RuntimeError("nobody answered")
    return taken[job["count"] // 10 :]


def open_work(api: RawApi, to: str, work_id: str) -> None:
    """One work for a peer."""
    api.call("POST", "/v1/works", {"to": to, "text": "x" * 200, "work_id": work_id})


def carry_out(api: RawApi, work_id: str) -> None:
    """Take a work from the inbox when it comes, and accept, trace and complete it."""
    item = api.call("POST", "/v1/inbox/next", {"wait": _WAIT, "ack": True, "work_id": work_id})["item"]
    if item is None:
        raise RuntimeError(f"{work_id} did not come")
    for verb in ("accept", "update", "complete"):
        api.call("POST", f"/v1/works/{work_id}/{verb}", {})


class Ends:
    """Works seen completed on the opener's event stream, with the time of each."""

    def __init__(self, path: str) -> None:
        self._events = Events(path, "direction=in&kind=trace")
        self._ahead = 0  # traces that came with others and are not waited for yet

    def wait(self, count: int) -> None:
        """Until that many further traces have come."""
        while self._ahead < count:
            self._ahead += self._events.count()
        self._ahead -= count


def works(job: dict[str, Any]) -> list[float]:
    """Milliseconds from the request that opens a work to the event that says completed; the first tenth warms up."""
    ops, worker, ends = RawApi(job["ops"]), RawApi(job["worker"]), Ends(job["ops"])
    origin, warm_up = f"work_{time.time_ns()}", job["count"] // 10
    taken = []
    for number in range(job["count"] + warm_up):
        work_id = f"{origin}_{number}"
        thread = threading.Thread(target=carry_out, args=(worker, work_id))
        thread.start()
        started = time.perf_counter()
        open_work(ops, job["to"], work_id)
        ends.wait(2)  # working, completed
        taken.append((time.perf_counter() - started) * 1000)
        thread.join()
    return taken[warm_up:]


def crowd(job: dict[str, Any]) -> float:
    """Works a second, `flight` at a time, each opener with a consumer of its own."""
    each = max(1, job["count"] // job["flight"])
    origin = f"work_{time.time_ns()}"

    def opener(lane: int) -> None:
        api = RawApi(job["ops"])
        for number in range(each):
            room.acquire()
            open_work(api, job["to"], f"{origin}_{lane}_{number}")

    def consumer(lane: int) -> None:
        api = RawApi(job["worker"])
        for number in range(each):
            carry_out(api, f"{origin}_{lane}_{number}")

    room = threading.Semaphore(job["flight"])
    ends = Ends(job["ops"])
    lanes = range(job["flight"])
    threads = [threading.Thread(target=role, args=(lane,)) for role in (opener, consumer) for lane in lanes]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for _ in range(each * job["flight"]):
        ends.wait(2)
        room.release()
    took = time.perf_counter() - started
    for thread in threads:
        thread.join()
    return float(each * job["flight"] / took)


def main() -> None:
    """Do the one job that the command line has."""
    job = json.loads(sys.argv[1])
    result = {"send": send, "whois": whois, "works": works, "crowd": crowd}[job["do"]](job)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
