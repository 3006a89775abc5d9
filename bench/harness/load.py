"""Measurements that several figures share, each one value: started here, carried out by children."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from bench.harness.envelopes import SIZE
from bench.harness.processes import Child
from tests.support.daemons import Daemon
from tests.support.natsutil import NatsServer

NOBODY = "bench.nobody"
"""A subject of the floors."""


def once(module: str, **job: Any) -> Any:
    """What a child answers to one job."""
    with Child(f"bench.harness.{module}", json.dumps(job)) as child:
        return child.read()


def received(
    server: NatsServer, daemon: Daemon, count: int, *, do: str = "deliver", mix: bool = False, signed: bool = False
) -> float:
    """Messages a second through the whole receive path of a daemon."""
    job = {"nats": server.url, "socket": str(daemon.socket_path), "to": daemon.name, "count": count, "mix": mix}
    return float(once("pump", do=do, signed=signed, **job))


@contextlib.contextmanager
def listening(module: str, *arguments: object) -> Iterator[Child]:
    """A child that is ready to count or to answer, over all rounds: it warms up as our daemon does."""
    with Child(module, *arguments) as child:
        if child.read() != "ready":
            raise RuntimeError(f"{module} is out of step")
        yield child


def ignoring(server: NatsServer) -> contextlib.AbstractContextManager[Child]:
    """A nats-py callback on NOBODY that does nothing."""
    return listening("bench.harness.floors", "subscriber", server.url, NOBODY)


def into(counter: Child, server: NatsServer, count: int, subject: str = NOBODY, to: str = "") -> float:
    """Messages a second into a child that counts, from the sender of figure 1 without its window: bare bytes on `subject`, or
    envelopes to the peer `to`."""
    if counter.ask(count) != "set":
        raise RuntimeError("the subscriber is out of step")
    what = {"to": to} if to else {"subject": subject, "size": SIZE}
    started = once("pump", do="blast", nats=server.url, count=count, **what)
    return float(count / (counter.read() - started))


def published(server: NatsServer, count: int) -> float:
    """Messages a second that nats-py publishes."""
    with Child("bench.harness.floors", "publish", server.url, count, SIZE) as child:
        return float(child.read())


def requests(server: NatsServer, count: int) -> list[float]:
    """Milliseconds of raw request-reply between two processes."""
    with (
        listening("bench.harness.floors", "echo", server.url, "bench.echo"),
        Child("bench.harness.floors", "request", server.url, "bench.echo", count) as asker,
    ):
        return list(map(float, asker.read()))


def worked(ops: Daemon, worker: Daemon, count: int, flight: int) -> tuple[list[float], float]:
    """Milliseconds of whole works from one daemon to the other and back, and how many a second."""
    places = {"ops": str(ops.socket_path), "worker": str(worker.socket_path), "to": worker.name}
    taken, rate = once("works", count=count, flight=flight, **places)
    return taken, rate


def drained(daemon: Daemon, count: int, connections: int = 16) -> float:
    """Messages a second leased from the inbox and acked."""
    job = {"socket": str(daemon.socket_path), "count": count, "connections": connections}
    return float(once("caller", do="drain", **job))


def sent(server: NatsServer, daemon: Daemon, count: int, connections: int) -> float:
    """Messages a second from requests on the API to the bus."""
    job = {"nats": server.url, "socket": str(daemon.socket_path), "to": "absent"}
    return float(once("caller", do="send", count=count, connections=connections, **job))


def paced(server: NatsServer, count: int, rate: int, **where: str) -> list[float]:
    """Milliseconds until each of `count` messages at a steady rate was acknowledged."""
    return list(map(float, once("pump", do="pace", nats=server.url, count=count, rate=rate, **where)))


@contextlib.contextmanager
def pressed(server: NatsServer, daemon: Daemon, rate: int, reached: list[float]) -> Iterator[None]:
    """So many says a second to a daemon while the block runs; `reached` gets how many they were."""
    job = {"do": "press", "nats": server.url, "to": daemon.name, "rate": rate}
    with Child("bench.harness.pump", json.dumps(job)) as child:
        if child.read() != "running":
            raise RuntimeError("the load is out of step")
        yield
        reached.append(child.ask("stop"))
