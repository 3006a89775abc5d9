"""Counters of events, and current problems as sentences: both are shown by `aghctl status`."""

from typing import Final

_PROBLEM_LIFE: Final = 300.0  # seconds for which a problem is shown after its last report


class Counters:
    """Counts since the start, by dotted name, and current problems by key."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._problems: dict[str, tuple[float, str]] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Count `name`."""
        self._counts[name] = self._counts.get(name, 0) + amount

    def __getitem__(self, name: str) -> int:
        return self._counts.get(name, 0)

    def snapshot(self) -> dict[str, int]:
        """All counts by name, sorted."""
        return dict(sorted(self._counts.items()))

    def problem(self, key: str, sentence: str, now: float) -> None:
        """Report a problem at monotonic second `now`; a new report replaces the one with the same key."""
        self._problems[key] = (now, sentence)

    def solved(self, key: str) -> None:
        """Remove a problem."""
        self._problems.pop(key, None)

    def problems(self, now: float) -> list[str]:
        """The current problems at monotonic second `now`."""
        return [sentence for since, sentence in self._problems.values() if now - since <= _PROBLEM_LIFE]
