"""Figure `receive`: the durable receive path, from the broker to an attached consumer, both on bare sockets."""

from aghbus.protocol.agh.identifiers import subject_for
from bench.harness.envelopes import CHANNEL, WORKSPACE
from bench.harness.figure import Figure, Result, Run, interleave
from bench.harness.load import delivery_rate, no_op_subscriber, ready_child, receive_rate, schema_rate
from bench.harness.processes import LOAD_FLAGS, broker, daemons, home

_LEAST = subject_for(WORKSPACE, CHANNEL, "least")
_FLOODED = (*LOAD_FLAGS, "--receive-queue", "200000")  # one row floods it on purpose


def measure(run: Run) -> Result:
    """Says and a mix of kinds into one daemon, the sender in another process."""
    scale = run.scale
    subject = subject_for(WORKSPACE, CHANNEL, "nobody")
    with (
        broker() as server,
        daemons(server.url, "worker", flags=_FLOODED) as (worker,),
        home() as folder,
        no_op_subscriber(server) as nobody,
        ready_child("bench.harness.floors", "each", server.url, subject, folder.root) as each,
        ready_child("bench.harness.floors", "least", server.url, _LEAST, folder.root) as least,
    ):
        found = interleave(
            run,
            {
                "nothing": lambda: delivery_rate(nobody, server, scale.floor_messages),
                "least": lambda: delivery_rate(least, server, scale.messages, _LEAST, to="least"),
                "single": lambda: delivery_rate(each, server, scale.commits, subject, to="nobody"),
                "schema": lambda: schema_rate(scale.messages),
                "say": lambda: receive_rate(server, worker, scale.messages),
                "mix": lambda: receive_rate(server, worker, scale.messages // 10, mix=True),
                "threads": lambda: receive_rate(server, worker, scale.messages, threads=True),
                "commit": lambda: receive_rate(server, worker, scale.messages, do="commit"),
            },
        )
    nothing = ("nats-py callback that does nothing", "nothing")
    single = ("aiosqlite, one commit a message", "single")
    says = "says of 614 bytes over bare sockets, delivered to a consumer"
    return Result(
        rows=[
            found.row(says, "msg/s", "say", floor=nothing, target=0.13),
            found.row(says, "msg/s", "say", floor=("three rows in groups, no rule checked", "least")),
            found.row(says, "msg/s", "say", floor=("rows of the log in bare sqlite3, groups of 512", "schema")),
            found.row(f"{says}, each of a thread of its own", "msg/s", "threads", floor=("of fifty threads", "say")),
            found.row("mix with works over bare sockets, delivered to a consumer", "msg/s", "mix", floor=nothing),
            found.row("says of 614 bytes over a bare socket, committed, no consumer", "msg/s", "commit", floor=nothing),
            found.row(says, "msg/s", "say", floor=single),
        ]
    )


FIGURE = Figure("receive", "Durable receive over bare sockets: what the daemon can do", measure, 1.5)
