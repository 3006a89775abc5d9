"""Whether a COMMIT runs in a thread or, if the disk is fast and the transaction small, on the event loop.

Handing a COMMIT to a thread and its result back costs more than twice what a small COMMIT does on a fast disk, and
the thread has to get the interpreter lock from the loop (store/engine/gil_yield.py). So a small transaction is
committed on the loop while recent commits were fast. A disk that is slow, or becomes slow, is waited for in the
thread (docs/adr/0002-writer-on-the-loop.md).
"""

import os
import sqlite3
import time
from bisect import bisect_left
from collections import deque
from typing import Final

from aghbus.protocol.base.histogram import BOUNDS, Histogram

FAST_SECONDS: Final = 0.001  # compared with the fastest recent commit: the slower ones measure load, not the disk
SLOW_SECONDS: Final = 0.02  # one such commit on the loop is enough
PENALTY: Final = 16  # commits in the thread after a slow one on the loop; doubled for each that follows soon
MAX_PENALTY: Final = 256  # also the number of fast commits on the loop after which the penalty is reset
_SAMPLES: Final = 8  # commits by which the disk is judged
WAL_LIMIT: Final = 64 * 1024 * 1024
"""Bytes that the WAL file keeps after a burst. A longer one waits for a checkpoint, which the next COMMIT may make."""
_SMALL_ROWS: Final = 512  # changed rows of a small transaction: a full batch of received messages


class CommitPolicy:
    """Decides where the COMMITs of one connection run, and times them. `seconds` has how long they took."""

    def __init__(self, db: sqlite3.Connection, wal: str) -> None:
        """`wal` is the path of the WAL file, whose length is asked for; it is never opened."""
        self._db = db
        self._wal = wal
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._penalty = 0  # commits until the loop may be used again
        self._next_penalty = PENALTY
        self._since_slow = 0  # commits on the loop since the last slow one
        self.seconds: Final = Histogram()

    def commits_on_loop(self, changes: int) -> bool:
        """Whether the open transaction, with this number of changed rows, is to be committed on the event loop."""
        if self._penalty or changes > _SMALL_ROWS:
            return False
        if len(self._samples) < _SAMPLES or min(self._samples) >= FAST_SECONDS:
            return False
        try:
            return os.stat(self._wal).st_size <= WAL_LIMIT  # noqa: PTH116 - a third of the time of Path.stat
        except FileNotFoundError:
            return True

    def commit(self, *, on_loop: bool) -> None:
        """Commits, on the event loop if `commits_on_loop`, else in the store's thread. Raises sqlite3.Error."""
        if not on_loop:
            self._penalty = max(0, self._penalty - 1)
        started = time.perf_counter()
        self._db.execute("COMMIT")
        took = time.perf_counter() - started
        self._samples.append(took)
        self.seconds.counts[bisect_left(BOUNDS, took)] += 1
        self.seconds.sum += took
        if on_loop and took > SLOW_SECONDS:
            self._penalize()
        else:
            self._since_slow += on_loop

    def _penalize(self) -> None:
        if self._since_slow >= MAX_PENALTY:
            self._next_penalty = PENALTY
        self._penalty, self._since_slow = self._next_penalty, 0
        self._next_penalty = min(2 * self._penalty, MAX_PENALTY)
