"""Measurements that several figures share, each one value: started here, carried out by children."""

import json
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


def ignored(server: NatsServer, count: int) -> float:
    """Messages a second into a nats-py callback that does nothing, from the same sender."""
    with Child("bench.harness.floors", "subscriber", server.url, NOBODY) as floor:
        return into(floor, server, count, NOBODY)


def into(floor: Child, server: NatsServer, count: int, subject: str, to: str = "") -> float:
    """Messages a second into a child that counts: bare bytes on `subject`, or envelopes to the peer `to`."""
    if floor.read() != "ready" or floor.ask(count) != "set":
        raise RuntimeError("the subscriber is out of step")
    what = {"to": to} if to else {"subject": subject, "size": SIZE}
    started = once("pump", do="blast", nats=server.url, count=count, **what)
    return float(count / (floor.read() - started))


def published(server: NatsServer, count: int) -> float:
    """Messages a second that nats-py publishes."""
    with Child("bench.harness.floors", "publish", server.url, count, SIZE) as child:
        return float(child.read())


def requests(server: NatsServer, count: int) -> list[float]:
    """Milliseconds of raw request-reply between two processes."""
    with Child("bench.harness.floors", "echo", server.url, "bench.echo") as echo:
        if echo.read() != "ready":
            raise RuntimeError("the echo is out of step")
        with Child("bench.harness.floors", "request", server.url, "bench.echo", count) as asker:
            return list(map(float, asker.read()))
