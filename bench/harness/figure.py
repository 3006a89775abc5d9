"""What a figure is, what it returns, and the rounds in which it is measured."""

import statistics
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec

from bench.harness.progress import Progress
from bench.harness.scale import Scale

Measured = float | list[float] | dict[str, float]
Way = Callable[[], Measured]
"""One measurement: a value (a rate, a time or a size), samples, whose median is the value, or several values by name."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. `values` and `floors` are of the same rounds, in order; so are their ratios."""

    what: str
    unit: str
    values: list[float]
    floor: str = ""
    floors: list[float] = []
    bound: float | None = None  # the ratio that must be kept, of the table of targets
    aim: float | None = None  # and the one to reach
    better: Literal["higher", "lower"] = "higher"

    @property
    def value(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.values)

    @property
    def ratios(self) -> list[float]:
        """Of each round; empty without a floor."""
        return [value / floor for value, floor in zip(self.values, self.floors, strict=False) if floor]

    @property
    def ratio(self) -> float | None:
        """Median of the rounds' ratios."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def verdict(self) -> str:
        """Where the ratio stands; empty without a target."""
        if self.ratio is None or self.bound is None or self.aim is None:
            return ""
        sign = 1 if self.better == "higher" else -1
        if sign * self.ratio >= sign * self.aim:
            return "reached"
        return "kept" if sign * self.ratio >= sign * self.bound else "MISSED"


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Cost per message over a size that grows."""

    name: str
    unit: str
    sizes: list[int]
    costs: list[float]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure found. `latencies` are samples in milliseconds by name; `skipped` says why there is nothing, and `failed`
    that there should be something."""

    rows: list[Row] = []
    latencies: dict[str, list[float]] = {}
    curves: list[Curve] = []
    notes: list[str] = []
    skipped: str = ""
    failed: bool = False


class Run(NamedTuple):
    """What a figure is handed."""

    scale: Scale
    progress: Progress


class Figure(NamedTuple):
    """One figure: its name on the command line, its title in the report, the function that measures it, and its
    share of the run's time beside the others'."""

    name: str
    title: str
    measure: Callable[[Run], Result]
    weight: float = 1.0


class Found(dict[str, list[float]]):
    """The values of the counted rounds, in order, by name. `samples` has all samples of the ways that return some."""

    def __init__(self) -> None:
        super().__init__()
        self.samples: dict[str, list[float]] = {}

    def add(self, name: str, measured: Measured) -> None:
        """What a way returned in one round."""
        if isinstance(measured, dict):
            for part, value in measured.items():
                self.add(part, value)
        elif isinstance(measured, list):
            self.samples.setdefault(name, []).extend(measured)
            self.add(name, statistics.median(measured))
        else:
            self.setdefault(name, []).append(measured)

    def row(
        self,
        what: str,
        unit: str,
        name: str,
        *,
        floor: tuple[str, str] | None = None,
        target: tuple[float, float] | None = None,
    ) -> Row:
        """The line of the table about `name`. `floor` is its label and its name here, `target` the ratio to stay above and the
        one to reach. Rates are better higher, all else lower."""
        label, beside = floor or ("", "")
        bound, aim = target or (None, None)
        return Row(
            what=what,
            unit=unit,
            values=self[name],
            floor=label,
            floors=self[beside] if floor else [],
            bound=bound,
            aim=aim,
            better="higher" if unit.endswith("/s") else "lower",
        )


def interleave(run: Run, ways: Mapping[str, Way], rounds: int | None = None) -> Found:
    """The values of all ways by name: a round that warms up and is not counted, then rounds in which they take turns.

    The order turns around with every round, so that a machine that drifts spoils all alike. When the figure's share of time is
    used up no further round begins; one is always measured. A smoke test has no warm-up.
    """
    found = Found()
    rounds = run.scale.rounds if rounds is None else rounds
    for number in range(0 if run.scale.warm_up else 1, rounds + 1):
        if number > 1 and run.progress.late:
            break
        names = list(ways) if number % 2 else list(ways)[::-1]
        for name in names:
            run.progress.step(f"{name}, {f'round {number} of {rounds}' if number else 'warm-up'}")
            measured = ways[name]()
            if number:
                found.add(name, measured)
    return found
