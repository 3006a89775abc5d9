"""Figure 7: signing and verifying, once the daemon can."""

import importlib.util

from bench.harness.figure import Figure, Result, Run


def measure(run: Run) -> Result:
    """Nothing while the trust profile is not part of this version."""
    if importlib.util.find_spec("aghbus.protocol.trust_proof") is None:
        return Result(skipped="this version of aghbus cannot sign and verify envelopes yet")
    return Result(skipped="this version signs and verifies, but this figure does not measure it yet")


FIGURE = Figure("verified", "7. Verified mode", measure, 0.0)
