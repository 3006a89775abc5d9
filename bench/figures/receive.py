"""Figure 1: the durable receive path, from the broker to an attached consumer."""

import tempfile

from aghbus.protocol.identifiers import subject_for
from bench.harness.envelopes import CHANNEL, WORKSPACE
from bench.harness.figure import Figure, Result, Row, Run, interleave
from bench.harness.load import ignored, into, received
from bench.harness.processes import Child, broker, daemons

_NOTHING = "nats-py callback that does nothing"


def measure(run: Run) -> Result:
    """Says and a mix of kinds into one daemon, the sender in another process."""
    scale = run.scale
    flags = (
        "--inbox-capacity",
        "100000000",
        "--retry-first",
        "1h",
        "--retry-ceiling",
        "1d",
        "--receive-queue",
        "200000",
    )
    with broker() as server, daemons(server.url, "worker", flags=flags) as (worker,):

        def committed_singly() -> float:
            with tempfile.TemporaryDirectory(prefix="aghbench-") as folder:
                subject = subject_for(WORKSPACE, CHANNEL, "nobody")
                with Child("bench.harness.floors", "each", server.url, subject, folder) as floor:
                    return into(floor, server, scale.commits, subject, to="nobody")

        found = interleave(
            run,
            {
                "nothing": lambda: ignored(server, scale.floor_messages),
                "single": committed_singly,
                "say": lambda: received(server, worker, scale.messages),
                "mix": lambda: received(server, worker, scale.messages // 10, mix=True),
                "commit": lambda: received(server, worker, scale.messages, do="commit"),
            },
        )
    unit, nothing = "msg/s", found["nothing"]
    rows = [
        Row(
            what="says of 614 bytes, delivered to a consumer",
            unit=unit,
            values=found["say"],
            floor=_NOTHING,
            floors=nothing,
            bound=0.15,
            aim=0.33,
        ),
        Row(
            what="mix with works, delivered to a consumer",
            unit=unit,
            values=found["mix"],
            floor=_NOTHING,
            floors=nothing,
        ),
        Row(
            what="says of 614 bytes, committed, nobody attached",
            unit=unit,
            values=found["commit"],
            floor=_NOTHING,
            floors=nothing,
        ),
        Row(
            what="says of 614 bytes, delivered to a consumer",
            unit=unit,
            values=found["say"],
            floor="aiosqlite, one commit a message",
            floors=found["single"],
            bound=15,
            aim=40,
        ),
    ]
    return Result(rows=rows)


FIGURE = Figure("receive", "1. Durable receive path", measure, 1.5)
