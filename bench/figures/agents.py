"""Figure `agents`: whole works as agents get them, each through the client library, command or tools of its system."""

import contextlib
from collections.abc import Collection, Iterator
from functools import partial
from typing import Final

from bench.harness.figure import Figure, Measured, Measurement, Result, Rounds, Row, Run, interleave
from bench.harness.load import WAL_WORKS, agent, asked, ready_child, work_times
from bench.harness.processes import Child, broker, daemons, home, pid_of, usage, wall_ms
from bench.peers import missing
from bench.peers.agents import FLIGHT
from bench.peers.hosts import models, serving
from tests.support.daemons import ADMIT_ALL, Daemon

_FLAGS: Final = ("--capability", "test.run", *ADMIT_ALL)
_COMMAND: Final = "true"
SDK: Final = {
    "a2a-sdk, sqlite": "a2a-sdk's client and server, tasks in SQLite",
    "a2a-sdk, memory": "a2a-sdk's client and server, tasks in memory",
}
GATEWAY: Final = "a2a gateway"


def measure(run: Run) -> Result:
    """Ours and theirs in the same rounds. Bare sockets have daemons of their own: a Worker takes every work of its daemon."""
    count, hosted = run.scale.works, max(5, run.scale.works // 5)
    with (
        broker() as server,
        daemons(server.url, "ops", "worker", "bare-ops", "bare-worker", "served", "model", flags=_FLAGS) as started,
        _others(server.url) as others,
    ):
        ops, worker, bare_ops, bare_worker, served, model = started
        for pair in ((ops, worker), (bare_ops, bare_worker)) if run.scale.warm_up else ():
            work_times(*pair, WAL_WORKS, FLIGHT)
        with (
            agent("worker", worker.socket_path) as working,
            agent("opener", ops.socket_path, worker.name) as opener,
            agent("opener", ops.socket_path, served.name) as asker,
            serving(served, _COMMAND),
            models(ops, model) as work_of_models,
            _through_gateway(ops, worker) as through_gateway,
        ):
            asking = {**others, **through_gateway}
            ways: dict[str, Measurement] = {
                "client": lambda: _client(opener, working, [ops, worker], count),
                "bare": lambda: {
                    "bare": work_times(bare_ops, bare_worker, 2 * count, FLIGHT)[1],
                    "bare, one": work_times(bare_ops, bare_worker, count, 1)[0],
                },
                "serve": lambda: asked(asker, hosted, 1).taken,
                "command": lambda: [wall_ms([_COMMAND]) for _ in range(hosted)],
                "models": lambda: [work_of_models() for _ in range(hosted)],
            }
            ways |= {name: partial(_other, name, child, count) for name, child in asking.items()}
            found = interleave(run, ways)
            problems = [f"{one.name}: {problem}" for one in started for problem in one.get("/v1/status")["problems"]]
    return Result(
        rows=_rows(found, asking),
        latencies={f"work, {name}": found.samples[f"{name}, one"] for name in ("client", "bare", *asking)},
        notes=[*problems, *([missing()] if missing() else [])],
    )


def _rows(found: Rounds, others: Collection[str]) -> list[Row]:
    many, one = f"works, {FLIGHT} at a time, AsyncClient and Worker", "a work at rest, p50, AsyncClient and Worker"
    bare, client = "the same over bare sockets", "AsyncClient and Worker"
    rows = [
        found.row(many, "works/s", "client", floor=(bare, "bare"), target=0.8),
        found.row(one, "ms", "client, one", floor=(bare, "bare, one"), target=1.3),
    ]
    for name, label in SDK.items() if others else ():
        rows.append(
            found.row(many, "works/s", "client", floor=(label, name), target=10 if name == "a2a-sdk, sqlite" else None)
        )
        rows.append(found.row(one, "ms", "client, one", floor=(label, f"{name}, one")))
    tasks, task = (
        f"tasks, {FLIGHT} at a time, a2a-sdk's client and `aghctl a2a serve`",
        "a task at rest, p50, through it",
    )
    for name, label in SDK.items() if others else ():
        rows.append(found.row(tasks, "tasks/s", GATEWAY, floor=(label, name)))
        rows.append(found.row(task, "ms", f"{GATEWAY}, one", floor=(label, f"{name}, one")))
    if others:
        label = "nats-py's micro service and client, keeps nothing"
        rows.append(found.row(many, "works/s", "client", floor=(label, "micro service")))
    return [
        *rows,
        found.row("a work at rest, AsyncClient and Worker, written by both daemons", "KiB", "written", target=220),
        found.row(f"{many}, processor time of both daemons", "ms", "daemons", target=1.3),
        found.row(f"{many}, processor time of both clients", "ms", "clients"),
        found.row(
            f"a work at rest, `aghctl serve -- {_COMMAND}`, p50", "ms", "serve", floor=("the command alone", "command")
        ),
        found.row("a work at rest, `aghctl mcp` at both ends, p50", "ms", "models", floor=(client, "client, one")),
    ]


@contextlib.contextmanager
def _others(url: str) -> Iterator[dict[str, Child]]:
    """The agents of the other systems that ask, by name; none where they are not installed."""
    with contextlib.ExitStack() as stack:
        found: dict[str, Child] = {}
        if not missing():
            folder = stack.enter_context(home()).root
            for name in SDK:
                where = stack.enter_context(
                    Child("bench.peers.a2a_server", folder, name.removeprefix("a2a-sdk, "))
                ).read()
                found[name] = stack.enter_context(agent("a2a", where))
            stack.enter_context(ready_child("bench.peers.micro_service", url))
            found["micro service"] = stack.enter_context(agent("micro", url))
        yield found


@contextlib.contextmanager
def _through_gateway(ops: Daemon, worker: Daemon) -> Iterator[dict[str, Child]]:
    """The client of A2A that reaches our worker through the gateway; none where the SDK is not installed."""
    with contextlib.ExitStack() as stack:
        found: dict[str, Child] = {}
        if not missing():
            folder = stack.enter_context(home()).root
            gateway = stack.enter_context(Child("bench.peers.a2a_gateway", ops.socket_path, folder, worker.name))
            found[GATEWAY] = stack.enter_context(agent("a2a", gateway.read()))
        yield found


def _client(opener: Child, worker: Child, pair: list[Daemon], count: int) -> Measured:
    """Works 16 at a time, then one by one, with what daemons and clients use for each."""
    daemons, clients, many = [pid_of(one) for one in pair], (opener.pid, worker.pid), 2 * count
    of_daemons, of_clients = usage(*daemons), usage(*clients)
    rate = asked(opener, many, FLIGHT).rate
    of_daemons, of_clients = usage(*daemons).since(of_daemons), usage(*clients).since(of_clients)
    before = usage(*daemons)
    taken = asked(opener, count, 1).taken
    return {
        "client": rate,
        "client, one": taken,
        "daemons": 1000 * of_daemons.seconds / many,
        "clients": 1000 * of_clients.seconds / many,
        "written": usage(*daemons).since(before).written / count / 1024,
    }


def _other(name: str, asker: Child, count: int) -> Measured:
    """The same works of another system."""
    return {name: asked(asker, 2 * count, FLIGHT).rate, f"{name}, one": asked(asker, count, 1).taken}


FIGURE = Figure("agents", "Works as agents get them, through the clients", measure, 6.0)
