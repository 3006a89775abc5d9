"""Whether a COMMIT runs in a thread or, if the disk is fast and the transaction small, on the event loop.

Handing a COMMIT to a thread and its result back costs more than twice what a small COMMIT does on a fast disk, and
the thread has to get the interpreter lock from the loop (store/engine/gil_yield.py). So a small transaction is
committed on the loop while recent commits were fast. A disk that is slow, or becomes slow, is waited for in the
thread (docs/adr/0002-writer-on-the-loop.md).

Checkpoints write as much as thousands of pages and are only made by commits in the thread, which therefore
happen regularly on every disk.
"""

import sqlite3
import time
from bisect import bisect_left
from collections import deque
from typing import Final

from aghbus.protocol.base.histogram import BOUNDS, Histogram

CHECKPOINT_PAGES: Final = 4_096  # 16 MiB of WAL: a checkpoint, which makes one commit slow, is rare
FAST_SECONDS: Final = 0.001  # compared with the fastest recent commit: the slower ones measure load, not the disk
SLOW_SECONDS: Final = 0.02  # one such commit on the loop is enough
PENALTY: Final = 16  # commits in the thread after a slow one on the loop; doubled for each that follows soon
MAX_PENALTY: Final = 256  # also the number of fast commits on the loop after which the penalty is reset
_SAMPLES: Final = 8  # commits by which the disk is judged
_SMALL_ROWS: Final = 512  # changed rows of a small transaction: a full batch of received messages
_MAX_LOOP_ROWS: Final = 4_096  # changed rows between two commits in the thread: the WAL grows by a few MiB


class CommitPolicy:
    """Decides where the COMMITs of one connection run, and times them. `seconds` has how long they took."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._loop_rows = 0  # since the last commit in the thread
        self._penalty = 0  # commits until the loop may be used again
        self._next_penalty = PENALTY
        self._since_slow = 0  # commits on the loop since the last slow one
        self._may_checkpoint = True  # the setting of the connection
        self.seconds: Final = Histogram()

    def commits_on_loop(self, changes: int) -> bool:
        """Whether the open transaction, with this number of changed rows, is to be committed on the event loop."""
        return (
            not self._penalty
            and changes <= _SMALL_ROWS
            and self._loop_rows < _MAX_LOOP_ROWS
            and len(self._samples) == _SAMPLES
            and min(self._samples) < FAST_SECONDS
        )

    def commit(self, changes: int, *, on_loop: bool) -> None:
        """Commits, on the event loop if `commits_on_loop`, else in the store's thread. Raises sqlite3.Error."""
        if self._may_checkpoint is on_loop:
            self._may_checkpoint = not on_loop
            self._db.execute(f"PRAGMA wal_autocheckpoint = {0 if on_loop else CHECKPOINT_PAGES}")
        if on_loop:
            self._loop_rows += changes
        else:
            self._loop_rows, self._penalty = 0, max(0, self._penalty - 1)
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
