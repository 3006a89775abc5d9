"""A few figures of one run on one machine, as ratios to floors taken in the same run: `python -m bench.first_figures`.

Starts its own broker and two daemons in a temporary folder. Rounds alternate between floor and figure, so that a machine whose
speed drifts spoils both alike; what is printed are medians over rounds.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from aghbus.protocol.identifiers import subject_for
from tests.support.daemons import Daemon, Home, UnixClient, wait_for
from tests.support.natsutil import NatsServer

ROUNDS = 5
WARM_UP = 50


class Caller:
    """One kept-alive connection to a daemon's API."""

    def __init__(self, daemon: Daemon) -> None:
        self._client = UnixClient(daemon.socket_path)

    def __call__(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        self._client.request(
            method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"}
        )
        return json.loads(self._client.getresponse().read())


async def median_ms(action: Callable[[], Awaitable[object]], times: int) -> float:
    """Median of `times` calls, in milliseconds."""
    taken: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        await action()
        taken.append((time.perf_counter() - started) * 1000)
    return statistics.median(taken)


async def request_reply(client: Client) -> None:
    """The floor of everything that asks and waits."""
    await client.request("bench.echo", b"x" * 300, timeout=5)


def whois(ops: Caller) -> None:
    """One discovery through the API."""
    answer = ops("POST", "/v1/whois", {"query": "test.run", "first": True})
    assert answer["peers"], answer


def round_trip(ops: Caller, worker: Caller) -> None:
    """A work opened, taken, accepted, reported on, completed, and seen completed: five committed messages."""
    work = ops("POST", "/v1/works", {"to": "worker", "text": "x" * 200})["work_id"]
    item = worker("POST", "/v1/inbox/next", {"wait": 10, "ack": True, "work_id": work})["item"]
    assert item["message"]["work_id"] == work
    for verb in ("accept", "update", "complete"):
        worker("POST", f"/v1/works/{work}/{verb}", {})
    while ops("GET", f"/v1/works/{work}")["work"]["state"] != "completed":
        pass


async def flood(client: Client, peer: str, count: int, number: int) -> None:
    """`count` says of about 600 bytes to a peer, as fast as the broker takes them."""
    subject = subject_for("ws_local", "default", peer)
    for index in range(count):
        envelope = {
            "protocol": "agh-network/v0",
            "id": f"msg_{number:08x}{index:08x}",
            "workspace_id": "ws_local",
            "kind": "say",
            "channel": "default",
            "surface": "thread",
            "thread_id": "thread_bench",
            "from": "flooder",
            "to": peer,
            "ts": int(time.time()),
            "expires_at": int(time.time()) + 3600,
            "body": {"text": "x" * 300, "intent": "notice"},
            "proof": None,
        }
        await client.publish(subject, json.dumps(envelope).encode())
        if index % 256 == 0:
            await client.flush()
    await client.flush()


async def receive_rates(url: str, worker: Daemon, count: int, number: int) -> tuple[float, float]:
    """Messages a second: into a subscriber that does nothing, and until the daemon has committed them."""
    client = await nats.connect(url)
    done = asyncio.Event()
    seen = 0

    async def ignore(_message: Msg) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            done.set()

    await client.subscribe(subject_for("ws_local", "default", "nobody"), cb=ignore, pending_msgs_limit=-1)
    started = time.perf_counter()
    await flood(client, "nobody", count, number)
    await done.wait()
    floor = count / (time.perf_counter() - started)
    before = worker.get("/v1/status")["store"]["last_seq"]
    started = time.perf_counter()
    await flood(client, "worker", count, number)
    while worker.get("/v1/status")["store"]["last_seq"] - before < count:
        await asyncio.sleep(0.01)
    rate = count / (time.perf_counter() - started)
    await client.close()
    return floor, rate


async def measure(quick: bool) -> dict[str, float]:
    """All figures, as ratios."""
    times, count = (50, 2_000) if quick else (300, 20_000)
    with tempfile.TemporaryDirectory() as folder:
        async with NatsServer() as server:
            home = Home(Path(folder))
            nats_flags = ("--nats", server.url, "--inbox-capacity", "10000000", "--receive-queue", "200000")
            with (
                Daemon(home, "worker", "--capability", "test.run", *nats_flags) as worker,
                Daemon(home, "ops", *nats_flags) as ops,
            ):
                wait_for(lambda: ops.knows("worker"), 10, "presence")
                return await _rounds(server.url, worker, ops, times, count)


async def _rounds(url: str, worker: Daemon, ops: Daemon, times: int, count: int) -> dict[str, float]:
    client, echo = await nats.connect(url), await nats.connect(url)

    async def answer(message: Msg) -> None:
        await message.respond(b"y" * 300)

    await echo.subscribe("bench.echo", cb=answer)
    await echo.flush()
    ops_call, worker_call = Caller(ops), Caller(worker)
    loop = asyncio.get_running_loop()

    async def one_whois() -> None:
        await loop.run_in_executor(None, whois, ops_call)

    async def one_round_trip() -> None:
        await loop.run_in_executor(None, round_trip, ops_call, worker_call)

    ratios: dict[str, list[float]] = {"whois": [], "round_trip": [], "receive": []}
    rates: list[float] = []
    for number in range(ROUNDS):
        print(f"\rround {number + 1} of {ROUNDS}", end="", file=sys.stderr, flush=True)
        floor = await median_ms(lambda: request_reply(client), WARM_UP + times)
        ratios["whois"].append(await median_ms(one_whois, times) / floor)
        trip = await median_ms(one_round_trip, times // 5)
        ratios["round_trip"].append(trip / floor)
        rates.append(1000 / trip)
        nothing, durable = await receive_rates(url, worker, count, number)
        ratios["receive"].append(durable / nothing)
    print(file=sys.stderr)
    await client.close()
    await echo.close()
    return {
        **{name: statistics.median(values) for name, values in ratios.items()},
        "round_trips_per_s": statistics.median(rates),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test; the figures mean little")
    figures = asyncio.run(measure(parser.parse_args().quick))
    print(f"whois through the API / raw NATS request-reply (median): {figures['whois']:.2f} x")
    print(f"work opened, taken, accepted, traced, completed / raw request-reply: {figures['round_trip']:.1f} x")
    print(f"such round trips a second, one at a time: {figures['round_trips_per_s']:.0f}")
    print(f"durable receive / subscriber that does nothing (with the sender's cost in both): {figures['receive']:.2f}")


if __name__ == "__main__":
    main()
