"""Figure 1: the durable receive path, from the broker to an attached consumer."""

from aghbus.protocol.identifiers import subject_for
from bench.harness.envelopes import CHANNEL, WORKSPACE
from bench.harness.figure import Figure, Result, Run, interleave
from bench.harness.load import ignoring, into, listening, received
from bench.harness.processes import ROOMY, broker, daemons, home

_LEAST = subject_for(WORKSPACE, CHANNEL, "least")
_FLOODED = (*ROOMY, "--receive-queue", "200000")  # one row floods it on purpose


def measure(run: Run) -> Result:
    """Says and a mix of kinds into one daemon, the sender in another process."""
    scale = run.scale
    subject = subject_for(WORKSPACE, CHANNEL, "nobody")
    with (
        broker() as server,
        daemons(server.url, "worker", flags=_FLOODED) as (worker,),
        home() as folder,
        ignoring(server) as nobody,
        listening("bench.harness.floors", "each", server.url, subject, folder.root) as each,
        listening("bench.harness.floors", "least", server.url, _LEAST, folder.root) as least,
    ):
        found = interleave(
            run,
            {
                "nothing": lambda: into(nobody, server, scale.floor_messages),
                "least": lambda: into(least, server, scale.messages, _LEAST, to="least"),
                "single": lambda: into(each, server, scale.commits, subject, to="nobody"),
                "say": lambda: received(server, worker, scale.messages),
                "mix": lambda: received(server, worker, scale.messages // 10, mix=True),
                "commit": lambda: received(server, worker, scale.messages, do="commit"),
            },
        )
    nothing = ("nats-py callback that does nothing", "nothing")
    single = ("aiosqlite, one commit a message", "single")
    says = "says of 614 bytes, delivered to a consumer"
    return Result(
        rows=[
            found.row(says, "msg/s", "say", floor=nothing, target=(0.15, 0.33)),
            found.row(says, "msg/s", "say", floor=("three rows in groups, no rule checked", "least")),
            found.row("mix with works, delivered to a consumer", "msg/s", "mix", floor=nothing),
            found.row("says of 614 bytes, committed, nobody attached", "msg/s", "commit", floor=nothing),
            found.row(says, "msg/s", "say", floor=single, target=(15, 40)),
        ]
    )


FIGURE = Figure("receive", "1. Durable receive path", measure, 1.5)
