"""Counters of events, and current problems as sentences: both are shown by `aghctl status`."""

from collections import defaultdict
from typing import Final

_PROBLEM_LIFE: Final = 300.0  # seconds for which a problem is shown after its last report

NO_ENVELOPE: Final = "other"
"""In place of the kind of a message that is no valid envelope, or was rejected before it was parsed."""


class Counters(dict[str, int]):
    """Counts since the start, by dotted name, and current problems by key.

    On the path of every message, `counters[name] += 1` saves the call of `add`. For the metrics alone, `received` counts
    messages of peers by kind and result, `rejected` those over a limit by limit and lane, and `undelivered` own messages by kind
    and final state (docs/operations.md).
    """

    def __init__(self) -> None:
        super().__init__()
        self.received: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.rejected: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.undelivered: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._problems: dict[str, tuple[float, str]] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Count `name`."""
        self[name] += amount

    def not_delivered(self, kind: str, state: str) -> None:
        """Count an own message of `kind` that ended as `state`: `refused`, `expired` or `dead`."""
        self.add(f"outbox.{state}")
        self.undelivered[kind, state] += 1

    def __missing__(self, name: str) -> int:
        return 0

    def snapshot(self) -> dict[str, int]:
        """All counts by name, sorted."""
        return dict(sorted(self.items()))

    def problem(self, key: str, sentence: str, now: float) -> None:
        """Report a problem at monotonic second `now`; a new report replaces the one with the same key."""
        self._problems[key] = (now, sentence)

    def solved(self, key: str) -> None:
        """Remove a problem."""
        self._problems.pop(key, None)

    def problems(self, now: float) -> list[str]:
        """The current problems at monotonic second `now`."""
        return [sentence for since, sentence in self._problems.values() if now - since <= _PROBLEM_LIFE]
