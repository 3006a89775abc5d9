"""Sizes and durations of a run: seconds for a smoke test, minutes for a quick run, half an hour for a full one."""

from collections.abc import Mapping
from typing import NamedTuple


class Growth(NamedTuple):
    """The sizes at which the cost of a message is measured, from small to large, by what grows."""

    dedup: tuple[int, ...]  # ids in the window
    works: tuple[int, ...]  # open
    peers: tuple[int, ...]  # present
    inbox: tuple[int, ...]  # messages waiting
    random: tuple[int, ...]  # envelopes whose ids are random, in the dedup window
    stored: tuple[int, ...]  # envelopes; last, filling them takes longest
    messages: int  # of one measurement


class Scale(NamedTuple):
    """Counts and times of one kind of run. Rounds are counted without the one that warms up."""

    name: str
    budget: float  # seconds for the whole run; what would begin after them is skipped
    warm_up: bool  # whether a round is not counted
    rounds: int
    messages: int  # of one throughput measurement
    floor_messages: int  # of one of a floor, which is some thirty times as fast
    commits: int  # messages of the floor that commits each one
    calls: int  # of one latency measurement, one at a time
    works: int  # of one latency measurement of whole works; twice as many where throughput is measured
    paced: int  # messages of one latency measurement at a steady rate
    cold_starts: int  # processes in one round
    resting: int  # messages of one measurement at rest
    reopened: int  # messages in the store that is opened after kill -9
    held: int  # messages that a daemon has received when its memory is measured; 0: that is left out
    idle_daemons: int
    idle_seconds: float  # discovery is written every 30 seconds
    growth: Growth
    shares: Mapping[str, float]  # of figures by name, where their own `weight` does not fit this run


SMOKE = Scale(
    name="smoke",
    budget=600,  # every figure is run, however slow the machine is
    warm_up=False,
    rounds=1,
    messages=200,
    floor_messages=2_000,
    commits=50,
    calls=20,
    works=10,
    paced=200,
    cold_starts=1,
    resting=20,
    reopened=2_000,
    held=1_000,
    idle_daemons=2,
    idle_seconds=0.5,
    growth=Growth((10, 1_000), (10, 100), (2, 20), (10, 1_000), (10, 1_000), (10, 1_000), 100),
    shares={},
)
QUICK = Scale(
    name="quick",
    budget=160,
    warm_up=True,
    rounds=3,
    messages=8_000,  # a round of fewer depends on whether a segment of the indexes is written in it
    floor_messages=50_000,
    commits=300,
    calls=100,
    works=50,
    paced=1_500,
    cold_starts=8,
    resting=100,
    reopened=100_000,
    held=0,
    idle_daemons=8,
    idle_seconds=31.0,
    growth=Growth((1_000, 100_000), (10, 10_000), (2, 2_000), (10, 50_000), (2_000, 100_000), (10_000, 100_000), 1_000),
    shares={},
)
FULL = Scale(
    name="full",
    budget=1_680,
    warm_up=True,
    rounds=7,
    messages=15_000,
    floor_messages=50_000,  # 64 MiB, what a broker holds for one subscriber, are not reached
    commits=1_500,
    calls=1_000,
    works=200,
    paced=8_000,
    cold_starts=20,
    resting=500,
    reopened=1_000_000,
    held=1_000_000,
    idle_daemons=40,
    idle_seconds=121.0,
    growth=Growth(
        dedup=(1_000, 10_000, 100_000, 1_000_000),
        works=(10, 100, 1_000, 10_000),
        peers=(2, 20, 200, 2_000),
        inbox=(10, 1_000, 10_000, 100_000),
        random=(2_000, 100_000, 1_000_000),
        stored=(10_000, 100_000, 1_000_000, 10_000_000),
        messages=3_000,
    ),
    shares={"work": 4.0, "cost": 2.0, "growth": 12.0},  # 16,000 paced messages a round; a million; ten million
)
SCALES = {scale.name: scale for scale in (SMOKE, QUICK, FULL)}
