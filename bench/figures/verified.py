"""Figure `verified`: signing and verifying, and the receive path of figure `receive` with a signature on every message."""

import os
from typing import Final

from bench.harness.figure import Figure, Result, Row, Run, interleave
from bench.harness.load import receive_rate, run_job
from bench.harness.processes import LOAD_FLAGS, broker, daemons

_CALLS: Final = 1_024  # operations of one measurement of a signature alone: well below a second


def measure(run: Run) -> Result:
    """A daemon that gets plain and signed says in turn, beside what the cores could verify if they did nothing else."""
    scale, cores = run.scale, os.cpu_count() or 1
    costs: list[dict[str, float]] = []

    def bare() -> float:
        costs.append(run_job("proofs", count=min(_CALLS, scale.messages)))
        return costs[-1]["bare verify"]

    with broker() as server, daemons(server.url, "worker", flags=LOAD_FLAGS) as (worker,):
        found = interleave(
            run,
            {
                "bare": bare,
                "plain": lambda: receive_rate(server, worker, scale.messages),
                "signed": lambda: receive_rate(server, worker, scale.messages, signed=True),
            },
        )
    counted = costs[-len(found["bare"]) :]  # without a round that warms up
    each = {name: [cost[name] for cost in counted] for name in counted[0]}
    could = [cores * 1e6 / one for one in found["bare"]]
    return Result(
        rows=[
            Row(
                what="signed says of 614 bytes, delivered to a consumer",
                unit="msg/s",
                values=found["signed"],
                floor=f"Ed25519 verify in one thread, × {cores} cores",
                floors=could,
                target=0.45,
            ),
            Row(
                what="signed says of 614 bytes, delivered to a consumer",
                unit="msg/s",
                values=found["signed"],
                floor="the same unsigned",
                floors=found["plain"],
            ),
            _cost("an envelope verified", each["verify"], "Ed25519 verify", each["bare verify"]),
            _cost("an envelope signed", each["sign"], "Ed25519 sign", each["bare sign"]),
            _cost("an envelope verified ahead, in threads", each["ahead"], "on the loop", each["inline"]),
        ]
    )


def _cost(what: str, values: list[float], floor: str, floors: list[float]) -> Row:
    return Row(what=what, unit="µs", values=values, floor=floor, floors=floors, better="lower")


FIGURE = Figure("verified", "Verified mode, over bare sockets", measure)
