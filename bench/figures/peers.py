"""Figure 9: other systems on the same work, each as its documentation recommends it."""

import importlib.util

from aghbus.protocol.agh.identifiers import subject_for
from bench.figures.work import FLIGHT
from bench.harness.envelopes import CHANNEL, WORKSPACE
from bench.harness.figure import Figure, Result, Run, interleave
from bench.harness.load import delivery_rate, ready_child, receive_rate, run_job, work_times
from bench.harness.processes import Child, broker, daemons, home

_NEEDED = {"a2a": "a2a-sdk", "faststream": "faststream", "sqlalchemy": "a2a-sdk[sqlite]", "uvicorn": "uvicorn"}


def measure(run: Run) -> Result:
    """Ours and theirs in the same rounds; all of them run, and so are warm, from the first round to the last."""
    missing = sorted({package for module, package in _NEEDED.items() if importlib.util.find_spec(module) is None})
    if missing:
        return Result(skipped=f"not installed: {', '.join(missing)} (pip install --group bench)")
    scale = run.scale
    subject = subject_for(WORKSPACE, CHANNEL, "faststream")
    with (
        broker() as server,
        daemons(server.url, "ops", "worker") as (ops, worker),
        home() as folder,
        ready_child("bench.peers.micro_service", server.url),
        ready_child("bench.peers.faststream_app", server.url, subject) as faststream,
        Child("bench.peers.a2a_server", folder.root, "sqlite") as sqlite,
        Child("bench.peers.a2a_server", folder.root, "memory") as memory,
    ):
        ports = {"sqlite": sqlite.read(), "memory": memory.read()}

        def a2a(store: str) -> float:
            return float(run_job("other_systems", do="a2a", port=ports[store], count=2 * scale.works, flight=FLIGHT))

        def micro() -> float:
            return float(run_job("other_systems", do="micro", nats=server.url, count=20 * scale.works, flight=FLIGHT))

        found = interleave(
            run,
            {
                "works": lambda: work_times(ops, worker, 2 * scale.works, FLIGHT)[1],
                "a2a, SQLite": lambda: a2a("sqlite"),
                "a2a, memory": lambda: a2a("memory"),
                "micro service": micro,
                "receive": lambda: receive_rate(server, worker, scale.messages),
                "faststream": lambda: delivery_rate(faststream, server, scale.messages, subject, to="faststream"),
            },
        )
    works = f"works, {FLIGHT} at a time"
    sdk, memory_sdk = "a2a-sdk SendMessage, tasks in SQLite", "a2a-sdk SendMessage, tasks in memory"
    service, app = "nats-py micro service, keeps nothing", "FastStream subscriber, keeps nothing"
    receive = "durable receive path, delivered to a consumer"
    return Result(
        rows=[
            found.row(works, "works/s", "works", floor=(sdk, "a2a, SQLite")),
            found.row(works, "works/s", "works", floor=(memory_sdk, "a2a, memory")),
            found.row(works, "works/s", "works", floor=(service, "micro service")),
            found.row(receive, "msg/s", "receive", floor=(app, "faststream"), target=1.5),
        ]
    )


FIGURE = Figure("peers", "9. Others on the same work", measure, 2.0)
