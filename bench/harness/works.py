"""Whole works between the agents of two daemons, in its own process: `python -m bench.harness.works JOB` (JSON).

`flight` works at a time, each opened at the daemon `ops`, and taken, accepted and completed at the daemon `worker`. Says
JSON: `[milliseconds of each work, works a second]`. The milliseconds, from the request that opens a work to the event that says
completed, are those of each work when there is one at a time.

One selector loop and prepared requests: with a thread for each agent the load took more of the machine than it should.
"""

import json
import selectors
import sys
import time
from typing import Any

from bench.harness.caller import WAIT
from bench.harness.wire import Events, RawApi, ready, request_bytes


def script(to: str, work_id: str) -> list[bytes]:
    """The requests of one work: its opening as our client has it, then those of the worker in order."""
    ask = {"to": to, "text": "x" * 200, "work_id": work_id, "reactions": "none"}
    opening = request_bytes("POST", "/v1/works", ask)
    taking = request_bytes("POST", "/v1/inbox/next", {"wait": WAIT, "ack": True, "work_id": work_id})
    verbs = [request_bytes("POST", f"/v1/works/{work_id}/{verb}", {}) for verb in ("accept", "complete")]
    return [opening, taking, *verbs]


class Lane:
    """Two agents that carry out one work at a time."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.ops = RawApi(job["ops"])
        self.worker = RawApi(job["worker"])
        self._left: list[bytes] = []  # what the worker has still to ask
        self._due = 0  # answers that are awaited

    @property
    def idle(self) -> bool:
        """Whether every answer has come."""
        return self._due == 0

    def begin(self, requests: list[bytes]) -> None:
        """The worker waits for the work, then it is opened."""
        opening, *self._left = requests
        self._due = len(requests)
        self._next()
        self.ops.socket.sendall(opening)

    def opened(self) -> None:
        """Something came from the opener's daemon."""
        self._due -= self.ops.receive() is not None

    def worked(self) -> None:
        """Something came from the worker's daemon."""
        if (content := self.worker.receive()) is None:
            return
        if b'"item":null' in content:
            raise RuntimeError("a work did not come")
        self._due -= 1
        self._next()

    def _next(self) -> None:
        if self._left:
            self.worker.socket.sendall(self._left.pop(0))


def works(job: dict[str, Any]) -> tuple[list[float], float]:
    """Milliseconds of each work, and works a second; a tenth more, at first, warms up."""
    warm_up, origin = -(-job["count"] // 10), f"work_{time.time_ns()}"
    scripts = [script(job["to"], f"{origin}_{number}") for number in range(job["count"] + warm_up)]
    lanes = [Lane(job) for _ in range(job["flight"])]
    ends = Events(job["ops"], "direction=in&kind=trace")
    picker = selectors.DefaultSelector()
    picker.register(ends.socket, selectors.EVENT_READ)
    for lane in lanes:
        picker.register(lane.ops.socket, selectors.EVENT_READ, lane.opened)
        picker.register(lane.worker.socket, selectors.EVENT_READ, lane.worked)
    _run(scripts[:warm_up], lanes, ends, picker)
    started = time.perf_counter()
    taken = _run(scripts[warm_up:], lanes, ends, picker)
    return taken, job["count"] / (time.perf_counter() - started)


def _run(scripts: list[list[bytes]], lanes: list[Lane], ends: Events, picker: selectors.DefaultSelector) -> list[float]:
    """Milliseconds of each work."""
    begun: list[float] = []
    taken: list[float] = []
    while len(taken) < len(scripts) or not all(lane.idle for lane in lanes):
        for lane in lanes:
            if lane.idle and len(begun) < len(scripts) and len(begun) - len(taken) < len(lanes):
                begun.append(time.perf_counter())
                lane.begin(scripts[len(begun) - 1])
        for act in ready(picker):
            if act is not None:
                act()
                continue
            ended, now = ends.count(), time.perf_counter()
            taken += [(now - began) * 1000 for began in begun[len(taken) : len(taken) + ended]]
    return taken


if __name__ == "__main__":
    print(json.dumps(works(json.loads(sys.argv[1]))), flush=True)
