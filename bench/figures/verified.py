"""Figure 7: signing and verifying, and the receive path of figure 1 with a signature on every message."""

import os

from bench.harness.figure import Figure, Result, Row, Run, interleave
from bench.harness.load import once, received
from bench.harness.processes import ROOMY, broker, daemons

_CALLS = 3_000  # operations of one measurement of a signature alone: well below a second
_SMOKE_CALLS = 300


def measure(run: Run) -> Result:
    """A daemon that gets plain and signed says in turn, beside what the cores could verify if they did nothing else."""
    scale, cores = run.scale, os.cpu_count() or 1
    calls = _SMOKE_CALLS if scale.name == "smoke" else _CALLS
    with broker() as server, daemons(server.url, "worker", flags=ROOMY) as (worker,):
        found = interleave(
            run,
            {
                "bare verify": lambda: float(once("proofs", do="bare-verify", count=calls)),
                "plain": lambda: received(server, worker, scale.messages),
                "signed": lambda: received(server, worker, scale.messages, signed=True),
                "verify": lambda: float(once("proofs", do="verify", count=calls)),
                "bare sign": lambda: float(once("proofs", do="bare-sign", count=calls)),
                "sign": lambda: float(once("proofs", do="sign", count=calls)),
                "inline": lambda: float(once("proofs", do="inline", count=calls)),
                "ahead": lambda: float(once("proofs", do="ahead", count=calls)),
            },
        )
    could = [cores * 1e6 / each for each in found["bare verify"]]
    return Result(
        rows=[
            Row(
                what="signed says of 614 bytes, delivered to a consumer",
                unit="msg/s",
                values=found["signed"],
                floor=f"Ed25519 verify in one thread, × {cores} cores",
                floors=could,
                bound=0.4,
                aim=0.65,
            ),
            Row(
                what="signed says of 614 bytes, delivered to a consumer",
                unit="msg/s",
                values=found["signed"],
                floor="the same unsigned",
                floors=found["plain"],
            ),
            _cost("an envelope verified", found["verify"], "Ed25519 verify", found["bare verify"]),
            _cost("an envelope signed", found["sign"], "Ed25519 sign", found["bare sign"]),
            _cost("an envelope verified ahead, in threads", found["ahead"], "on the loop", found["inline"]),
        ]
    )


def _cost(what: str, values: list[float], floor: str, floors: list[float]) -> Row:
    return Row(what=what, unit="µs", values=values, floor=floor, floors=floors, better="lower")


FIGURE = Figure("verified", "7. Verified mode", measure)
