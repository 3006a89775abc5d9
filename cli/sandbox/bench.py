"""The measurements of `aghctl bench` between two daemons: whois, complete works, and message throughput."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from aghbus.cli.app.errors import AnswerIsNo
from aghbus.client.api import Api
from aghbus.client.events import follow
from aghbus.client.http import quote
from aghbus.protocol.base.annotations import Any

Step = Callable[[int, int], None]

SENDERS = 16
"""Concurrent requests of the throughput measurement; they share commits."""
PATIENCE = 30.0
"""Seconds for one answer, on the slowest machine."""
WARM_UP = 5
"""Calls before the measurement begins."""


def summary(taken: list[float]) -> dict[str, Any]:
    """Count, median and 99th percentile (nearest rank) in milliseconds; `taken` is in seconds."""
    ordered = sorted(taken)
    p50, p99 = (ordered[max(0, -(-len(ordered) * share // 100) - 1)] for share in (50, 99))
    return {"count": len(taken), "p50_ms": round(1000 * p50, 3), "p99_ms": round(1000 * p99, 3)}


def whois(ops: Api, worker: str, count: int, step: Step) -> dict[str, Any]:
    """Sequential discoveries of one peer."""
    taken = []
    for number in range(count + WARM_UP):
        step(number, count + WARM_UP)
        began = time.perf_counter()
        found = ops.post("/v1/whois", {"query": worker, "first": True, "wait": PATIENCE}, wait=PATIENCE)
        taken.append(time.perf_counter() - began)
        if not found["peers"]:
            raise AnswerIsNo(f"{worker} did not answer", "the broker must let both peers publish and subscribe")
    return summary(taken[WARM_UP:])


def works(ops: Api, worker: Api, name: str, count: int, step: Step) -> dict[str, Any]:
    """Sequential works: opened, leased, accepted and completed, until the initiator sees the completion."""
    ends = _events(ops, [("kind", "trace"), ("direction", "in")])
    taken = []
    for number in range(count + WARM_UP):
        step(number, count + WARM_UP)
        began = time.perf_counter()
        work = str(ops.post("/v1/works", {"to": name, "text": "x" * 200})["work_id"])
        body = {"wait": PATIENCE, "ack": True, "work_id": work}
        if worker.post("/v1/inbox/next", body, wait=PATIENCE)["item"] is None:
            raise AnswerIsNo(f"{work} did not reach {name}", "see the daemons' logs")
        for verb in ("accept", "complete"):
            worker.post(f"/v1/works/{quote(work)}/{verb}", {})
        while (next(ends).get("work") or {}).get("after") != "completed":
            pass
        taken.append(time.perf_counter() - began)
    taken = taken[WARM_UP:]
    return {**summary(taken), "per_second": round(len(taken) / sum(taken), 1)}


def messages(ops: Api, worker: Api, name: str, count: int, step: Step) -> dict[str, Any]:
    """Says over SENDERS connections, from the first request until the receiver's stream has the last one."""
    arrived = _events(worker, [("kind", "say"), ("direction", "in")])
    failures: list[Exception] = []
    each = -(-count // SENDERS)

    def send() -> None:
        body = {"text": "x" * 320}
        try:
            for _ in range(each):
                ops.post("/v1/messages", {"kind": "say", "to": name, "thread_id": "thread_bench", "body": body})
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=send, daemon=True) for _ in range(SENDERS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for number in range(each * SENDERS):
        step(number, each * SENDERS)
        if failures:
            raise failures[0]
        next(arrived)
    took = time.perf_counter() - began
    return {"count": each * SENDERS, "per_second": round(each * SENDERS / took, 1)}


def _events(api: Api, query: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Events from this moment on; the stream itself is opened on the first `next`."""
    since = int(api.get("/v1/status")["store"]["last_seq"])
    return (event for event in follow(api, query, since, lambda _why: None) if event["type"] == "envelope")
