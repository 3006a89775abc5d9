"""Figure `messages`: a message from one agent to another, as they get it through the client library of their system."""

import contextlib
from functools import partial
from typing import Final, NamedTuple

from bench.harness.figure import Figure, Measured, Result, Run, interleave
from bench.harness.load import agent, asked
from bench.harness.processes import Child, broker, daemons, pid_of, usage
from bench.peers import missing
from bench.peers.agents import FLIGHT
from tests.support.daemons import ADMIT_ALL

_RATE: Final = 50  # messages a second, where they are measured at rest
OTHERS: Final = {"nats": "nats-py publish and subscribe, keeps nothing", "faststream": "FastStream, keeps nothing"}


class _Pair(NamedTuple):
    """An agent that sends, and one that receives."""

    sender: Child
    receiver: Child

    def pass_on(self, count: int, flight: int, rate: int = 0) -> tuple[list[float], float]:
        """Milliseconds from the sending of each message until its receiver is done with it, and messages a second."""
        if self.receiver.ask({"count": count, "flight": flight}) != "set":
            raise RuntimeError("the receiver is out of step")
        began = asked(self.sender, count, flight, rate).began
        found = self.receiver.read()
        return found["taken"], count / (found["ended"] - began)


def measure(run: Run) -> Result:
    """A say that is leased and acked, beside systems that keep nothing."""
    scale = run.scale
    with (
        broker() as server,
        daemons(server.url, "ops", "worker", flags=ADMIT_ALL) as (ops, worker),
        contextlib.ExitStack() as stack,
    ):
        ours = _Pair(
            stack.enter_context(agent("sender", ops.socket_path, worker.name)),
            stack.enter_context(agent("receiver", worker.socket_path)),
        )
        others = {
            name: _Pair(
                *(stack.enter_context(agent(f"{name}_{role}", server.url, f"bench.{name}")) for role in _Pair._fields)
            )
            for name in OTHERS
            if name == "nats" or not missing()
        }
        daemon_pids, client_pids = (pid_of(ops), pid_of(worker)), (ours.sender.pid, ours.receiver.pid)

        def client() -> Measured:
            rate = ours.pass_on(scale.messages // 10, FLIGHT)[1]
            of_daemons, of_clients = usage(*daemon_pids), usage(*client_pids)
            taken = ours.pass_on(scale.resting, 1, _RATE)[0]
            of_daemons, of_clients = usage(*daemon_pids).since(of_daemons), usage(*client_pids).since(of_clients)
            return {
                "client": rate,
                "client, one": taken,
                "written": of_daemons.written / scale.resting / 1024,
                "daemons": 1000 * of_daemons.seconds / scale.resting,
                "clients": 1000 * of_clients.seconds / scale.resting,
            }

        def other(name: str) -> Measured:
            pair = others[name]
            many, one = pair.pass_on(scale.messages // 2, FLIGHT), pair.pass_on(scale.resting // 2, 1, _RATE)
            return {name: many[1], f"{name}, one": one[0]}

        found = interleave(run, {"client": client, **{name: partial(other, name) for name in others}})
    say = "says from agent to agent, leased and acked"
    one = f"a say at {_RATE} a second, leased and acked"
    rows = [
        found.row(f"{one}, written by both daemons", "KiB", "written", target=50),
        found.row(f"{one}, processor time of both daemons", "ms", "daemons"),
        found.row(f"{one}, processor time of both clients", "ms", "clients"),
    ]
    for name in others:
        rows.append(found.row(f"{say}, {FLIGHT} at a time", "msg/s", "client", floor=(OTHERS[name], name)))
        rows.append(found.row(f"{one}, p50", "ms", "client, one", floor=(OTHERS[name], f"{name}, one")))
    return Result(
        rows=rows,
        latencies={f"say, {name}": found.samples[f"{name}, one"] for name in ("client", *others)},
        notes=[missing()] if missing() else [],
    )


FIGURE = Figure("messages", "Messages as agents get them, through the clients", measure, 5.0)
