"""Figures, their results, and the rounds in which they are measured."""

import statistics
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec

from bench.harness.progress import Progress
from bench.harness.scale import Scale

Measured = float | list[float] | Mapping[str, float | list[float]]
Measurement = Callable[[], Measured]
"""One measurement: a value (a rate, a time or a size), samples, whose median is the value, or several of them by name."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. `values` and `floors` are of the same rounds, in order; so are their ratios."""

    what: str
    unit: str
    values: list[float]
    floor: str = ""
    floors: list[float] = []
    target: float | None = None  # what the ratio, or the value of a row without a floor, must keep
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
        """The ratio, or the value where there is no floor, against its target: kept or MISSED; empty without one."""
        if self.target is None:
            return ""
        sign = 1 if self.better == "higher" else -1
        judged = sign * (self.value if self.ratio is None else self.ratio)
        return "kept" if judged >= sign * self.target else "MISSED"


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Cost per message over a size that grows."""

    name: str
    unit: str
    sizes: list[int]
    costs: list[float]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a figure. `latencies` are samples in milliseconds by name; `skipped` is the reason for an empty result, and
    `failed` is set when that is an error."""

    rows: list[Row] = []
    latencies: dict[str, list[float]] = {}
    curves: list[Curve] = []
    notes: list[str] = []
    skipped: str = ""
    failed: bool = False


class Run(NamedTuple):
    """The arguments of a figure."""

    scale: Scale
    progress: Progress


class Figure(NamedTuple):
    """One figure: its name on the command line, its title in the report, the function that measures it, and its
    share of the run's time beside the others'."""

    name: str
    title: str
    measure: Callable[[Run], Result]
    weight: float = 1.0


class Rounds(dict[str, list[float]]):
    """The values of the counted rounds, in order, by name. `samples` has all samples of the measurements that return some."""

    def __init__(self) -> None:
        super().__init__()
        self.samples: dict[str, list[float]] = {}

    def add(self, name: str, measured: Measured) -> None:
        """Add what a measurement returned in one round."""
        if isinstance(measured, Mapping):
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
        target: float | None = None,
    ) -> Row:
        """The line of the table about `name`. `floor` is its label and its name here. `target` is
        what the ratio or, without a floor, the value must keep. Rates are better higher, all else lower."""
        label, beside = floor or ("", "")
        return Row(
            what=what,
            unit=unit,
            values=self[name],
            floor=label,
            floors=self[beside] if floor else [],
            target=target,
            better="higher" if unit.endswith("/s") else "lower",
        )


def interleave(run: Run, measurements: Mapping[str, Measurement], rounds: int | None = None) -> Rounds:
    """The values of all measurements by name, from a warm-up round that does not count and rounds in which they alternate.

    The order is reversed after every round, so that a drift of the machine affects all alike. When the figure's share of time is
    used up no further round begins; one is always measured. A smoke test has no warm-up.
    """
    found = Rounds()
    rounds = run.scale.rounds if rounds is None else rounds
    for number in range(0 if run.scale.warm_up else 1, rounds + 1):
        if number > 1 and run.progress.late:
            break
        names = list(measurements) if number % 2 else list(measurements)[::-1]
        for name in names:
            run.progress.step(f"{name}, {f'round {number} of {rounds}' if number else 'warm-up'}")
            measured = measurements[name]()
            if number:
                found.add(name, measured)
    return found
