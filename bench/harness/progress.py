"""A bar on standard error, and the time that is left."""

import shutil
import sys
import time
from collections.abc import Sequence
from typing import Final, TextIO

_WIDTH: Final = 24  # characters of the bar


class Progress:
    """Progress of a run over its figures, bounded by `budget` seconds, which they share by
    their weights. It draws a bar on a terminal, and prints a line a figure elsewhere."""

    def __init__(self, weights: Sequence[float], budget: float, out: TextIO = sys.stderr) -> None:
        self._out = out
        self._weights = weights
        self._begun = -1
        self._title = ""
        self._start = time.monotonic()
        self._end = self._start + budget
        self._until = self._end
        self._began = self._start

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def late(self) -> bool:
        """Whether the share of the figure under way is used up."""
        return time.monotonic() > self._until

    @property
    def over(self) -> bool:
        """Whether the whole budget is used up."""
        return time.monotonic() > self._end

    def begin(self, title: str) -> None:
        """The next figure; it may take its share by weight of the time that is left."""
        self._begun += 1
        self._title = title
        self._began = time.monotonic()
        share = self._weights[self._begun] / (sum(self._weights[self._begun :]) or 1.0)
        self._until = self._began + max(0.0, self._end - self._began) * share
        if not self._out.isatty():
            self._out.write(f"[{self.elapsed:5.0f} s] {title}\n")
            self._out.flush()

    def step(self, what: str) -> None:
        """Show the current step."""
        if not self._out.isatty():
            return
        spent = (time.monotonic() - self._began) / max(self._until - self._began, 1e-9)
        weights = self._weights
        done = (sum(weights[: self._begun]) + min(spent, 0.95) * weights[self._begun]) / (sum(weights) or 1.0)
        bar = "█" * int(_WIDTH * done)
        line = f"{bar:░<{_WIDTH}} {100 * done:3.0f} % {self.elapsed:4.0f} s  {self._title}: {what}"
        self._out.write("\r\033[K" + line[: shutil.get_terminal_size().columns - 1])
        self._out.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._out.isatty():
            self._out.write("\r\033[K")
            self._out.flush()
