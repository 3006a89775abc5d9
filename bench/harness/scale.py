"""How much of everything is done: seconds for a smoke test, minutes for a quick run, half an hour for a full one."""

from typing import NamedTuple


class Scale(NamedTuple):
    """Counts and times of one kind of run. Rounds are counted without the one that warms up."""

    name: str
    budget: float  # seconds for the whole run; what would begin after them is skipped
    rounds: int
    messages: int  # of one throughput measurement of ours
    floor_messages: int  # of one of a floor, which is some thirty times as fast
    commits: int  # messages of the floor that commits each one
    calls: int  # of one latency measurement, one at a time
    works: int  # of one throughput measurement of whole works
    paced_seconds: float  # of one latency measurement under a steady load
    cold_starts: int  # processes in one round
    idle_seconds: float
    dedup: tuple[int, ...]  # ids in the window
    stored: tuple[int, ...]  # envelopes
    open_works: tuple[int, ...]
    present: tuple[int, ...]  # peers
    growth_messages: int
    growth_rounds: int


SMOKE = Scale(
    name="smoke",
    budget=60,
    rounds=1,
    messages=200,
    floor_messages=2_000,
    commits=50,
    calls=20,
    works=20,
    paced_seconds=0.3,
    cold_starts=2,
    idle_seconds=0.3,
    dedup=(1_000, 10_000),
    stored=(1_000, 10_000),
    open_works=(10, 100),
    present=(2, 20),
    growth_messages=200,
    growth_rounds=1,
)
QUICK = Scale(
    name="quick",
    budget=150,
    rounds=3,
    messages=3_000,
    floor_messages=50_000,
    commits=300,
    calls=100,
    works=100,
    paced_seconds=1.5,
    cold_starts=8,
    idle_seconds=3.0,
    dedup=(1_000, 100_000, 1_000_000),
    stored=(10_000, 1_000_000),
    open_works=(10, 10_000),
    present=(2, 2_000),
    growth_messages=1_000,
    growth_rounds=3,
)
FULL = Scale(
    name="full",
    budget=1_740,
    rounds=7,
    messages=20_000,
    floor_messages=100_000,
    commits=2_000,
    calls=1_000,
    works=1_000,
    paced_seconds=8.0,
    cold_starts=20,
    idle_seconds=10.0,
    dedup=(1_000, 100_000, 1_000_000),
    stored=(10_000, 100_000, 1_000_000, 10_000_000),
    open_works=(10, 100, 1_000, 10_000),
    present=(2, 20, 200, 2_000),
    growth_messages=5_000,
    growth_rounds=7,
)
SCALES = {scale.name: scale for scale in (SMOKE, QUICK, FULL)}
