"""Measurements that several figures share. Each runs in child processes and returns one value or a list of samples."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bench.harness.envelopes import SIZE
from bench.harness.processes import Child, home
from tests.support.daemons import Daemon
from tests.support.natsutil import NatsServer

WAL_WORKS = 600
"""Works until the WAL of a daemon has its full length: while a file grows, a commit takes longer."""
FLOOR_SUBJECT = "bench.nobody"
"""A subject of the floors."""


class Api(Protocol):
    """A peer whose agents ask it on a Unix socket."""

    @property
    def name(self) -> str:
        """Its peer id."""

    @property
    def socket_path(self) -> Path:
        """Its socket."""


class Skeleton(NamedTuple):
    """A least daemon."""

    name: str
    socket_path: Path
    pid: int


def schema_rate(count: int) -> float:
    """Messages a second that bare sqlite3 stores in the product's schema."""
    with Child("bench.harness.ceiling", count) as child:
        return float(child.read())


def run_job(module: str, **job: Any) -> Any:
    """The result of one job in a child process."""
    with Child(f"bench.harness.{module}", json.dumps(job)) as child:
        return child.read()


def receive_rate(server: NatsServer, daemon: Daemon, count: int, *, do: str = "deliver", **how: bool) -> float:
    """Messages a second through the whole receive path of a daemon; `how`: `mix`, `signed`, `threads`, `random_ids` of the pump."""
    job = {"nats": server.url, "socket": str(daemon.socket_path), "to": daemon.name, "count": count}
    return float(run_job("pump", do=do, **job, **how))


@contextlib.contextmanager
def ready_child(module: str, *arguments: object) -> Iterator[Child]:
    """A child process that is ready to count or to answer, over all rounds: it warms up as the daemon does."""
    with Child(module, *arguments) as child:
        if child.read() != "ready":
            raise RuntimeError(f"{module} is out of step")
        yield child


@contextlib.contextmanager
def skeletons(url: str, *names: str) -> Iterator[list[Skeleton]]:
    """Least daemons (bench.peers.skeleton) on the broker at `url`."""
    with home() as folder, contextlib.ExitStack() as stack:
        yield [
            Skeleton(
                name,
                folder.root / f"{name}.sock",
                stack.enter_context(ready_child("bench.peers.skeleton", name, url, folder.root)).pid,
            )
            for name in names
        ]


def no_op_subscriber(server: NatsServer) -> contextlib.AbstractContextManager[Child]:
    """A nats-py callback on FLOOR_SUBJECT that does nothing."""
    return ready_child("bench.harness.floors", "subscriber", server.url, FLOOR_SUBJECT)


def delivery_rate(counter: Child, server: NatsServer, count: int, subject: str = FLOOR_SUBJECT, to: str = "") -> float:
    """Messages a second into a child that counts, from the sender of `receive_rate` without its window: bare bytes on `subject`, or
    envelopes to the peer `to`."""
    if counter.ask(count) != "set":
        raise RuntimeError("the subscriber is out of step")
    what = {"to": to} if to else {"subject": subject, "size": SIZE}
    started = run_job("pump", do="blast", nats=server.url, count=count, **what)
    return float(count / (counter.read() - started))


def publish_rate(server: NatsServer, count: int) -> float:
    """Messages a second that nats-py publishes."""
    with Child("bench.harness.floors", "publish", server.url, count, SIZE) as child:
        return float(child.read())


def request_times(server: NatsServer, count: int) -> list[float]:
    """Milliseconds of raw request-reply between two processes."""
    with (
        ready_child("bench.harness.floors", "echo", server.url, "bench.echo"),
        Child("bench.harness.floors", "request", server.url, "bench.echo", count) as asker,
    ):
        return list(map(float, asker.read()))


def work_times(ops: Api, worker: Api, count: int, flight: int) -> tuple[list[float], float]:
    """Milliseconds of whole works from one daemon to the other and back, and how many a second."""
    places = {"ops": str(ops.socket_path), "worker": str(worker.socket_path), "to": worker.name}
    taken, rate = run_job("works", count=count, flight=flight, **places)
    return taken, rate


class Asked(NamedTuple):
    """Calls of an agent: milliseconds of each, when they began and ended, and how many a second."""

    taken: list[float]
    began: float
    ended: float

    @property
    def rate(self) -> float:
        """Calls a second."""
        return len(self.taken) / (self.ended - self.began)


def asked(agent: Child, count: int, flight: int, rate: int = 0) -> Asked:
    """Calls of one of bench.peers.agents, `flight` at a time, and at most `rate` a second if that is not 0."""
    return Asked(**agent.ask({"count": count, "flight": flight, "rate": rate}))


def agent(role: str, *arguments: object) -> contextlib.AbstractContextManager[Child]:
    """An agent (bench.peers.agents) over all rounds."""
    return ready_child("bench.peers.agents", role, *arguments)


def drain_rate(daemon: Daemon, count: int, connections: int = 16) -> float:
    """Messages a second leased from the inbox and acked."""
    job = {"socket": str(daemon.socket_path), "count": count, "connections": connections}
    return float(run_job("caller", do="drain", **job))


def send_rate(server: NatsServer, daemon: Api, count: int, connections: int) -> float:
    """Messages a second from requests on the API to the bus."""
    job = {"nats": server.url, "socket": str(daemon.socket_path), "to": "absent"}
    return float(run_job("caller", do="send", count=count, connections=connections, **job))


def acknowledgement_times(server: NatsServer, count: int, rate: int, **where: str) -> list[float]:
    """Milliseconds until each of `count` messages at a steady rate was acknowledged."""
    return list(map(float, run_job("pump", do="at_rate", nats=server.url, count=count, rate=rate, **where)))


@contextlib.contextmanager
def running(do: str, **job: Any) -> Iterator[Child]:
    """A job of the pump that runs while the block does."""
    with Child("bench.harness.pump", json.dumps({"do": do, **job})) as child:
        if child.read() != "running":
            raise RuntimeError("the load is out of step")
        yield child


@contextlib.contextmanager
def background_load(server: NatsServer, daemon: Daemon, rate: int, reached: list[float]) -> Iterator[None]:
    """Send `rate` says a second to a daemon while the block runs; the rate that was reached is appended to `reached`."""
    with running("press", nats=server.url, to=daemon.name, rate=rate) as child:
        yield
        reached.append(child.ask("stop"))
