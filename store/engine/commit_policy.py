"""Where a COMMIT is carried out: in a thread, or, when the disk is quick and there is little to write, on the event loop.

Handing a COMMIT to a thread and its result back costs more than twice what a small COMMIT does on a quick disk, and the thread
has to get the interpreter lock from the loop (store/engine/gil_yield.py). So a small transaction is committed at once while the
disk is seen to be quick; a disk that is slow, or becomes slow, is waited for in the thread (docs/adr/0002-writer-on-the-loop.md).

Checkpoints write as much as thousands of pages and are only made by commits in the thread, which therefore come from time to
time whatever the disk does.
"""

import sqlite3
import time
from collections import deque
from collections.abc import Callable
from typing import Final

CHECKPOINT_PAGES: Final = 4_096  # 16 MiB of WAL: a checkpoint, which makes one commit slow, comes seldom
QUICK_SECONDS: Final = (
    0.001  # ours: the quickest of the last commits says what the disk takes, the others what the machine does
)
SLOW_SECONDS: Final = 0.02  # ours: one such commit on the loop is enough
PENALTY: Final = 16  # ours, commits in the thread after a slow one on the loop; doubled for each that follows soon
MOST_PENALTY: Final = 256  # ours, and so many on the loop without a slow one: it was the machine
_LATEST: Final = 8  # ours, commits by which the disk is judged
_SMALL: Final = 256  # ours, changed rows of a small transaction: some tens of messages
_RUN: Final = 4_096  # ours, changed rows between two commits in the thread: the WAL grows by a few MiB


class Pace:
    """The COMMITs of one connection, timed."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._latest: deque[float] = deque(maxlen=_LATEST)
        self._run = 0  # rows since the last commit in the thread
        self._penalty = 0  # commits until the loop may be used again
        self._next_penalty = PENALTY
        self._calm = 0  # commits on the loop since the last slow one
        self._checkpoints = True  # whether a commit may begin a checkpoint: the setting of the connection

    def is_quick(self, changes: int) -> bool:
        """Whether the open transaction, which changes so many rows, can be committed on the event loop."""
        return (
            not self._penalty
            and changes <= _SMALL
            and self._run < _RUN
            and len(self._latest) == _LATEST
            and min(self._latest) < QUICK_SECONDS
        )

    def commit_here(self, changes: int, write: Callable[[], None]) -> None:
        """`write`, and COMMIT, on the event loop, after `is_quick`. Raises sqlite3.Error, and what `write` raises."""
        write()
        self._let_checkpoint(False)
        self._run += changes
        if self._commit() > SLOW_SECONDS:
            self._punish()
        else:
            self._calm += 1

    def _punish(self) -> None:
        if self._calm >= MOST_PENALTY:
            self._next_penalty = PENALTY
        self._penalty, self._calm = self._next_penalty, 0
        self._next_penalty = min(2 * self._penalty, MOST_PENALTY)

    def commit(self, write: Callable[[], None]) -> None:
        """The same in a thread."""
        write()
        self._let_checkpoint(True)
        self._run, self._penalty = 0, max(0, self._penalty - 1)
        self._commit()

    def _commit(self) -> float:
        began = time.perf_counter()
        self._db.execute("COMMIT")
        took = time.perf_counter() - began
        self._latest.append(took)
        return took

    def _let_checkpoint(self, allowed: bool) -> None:
        if allowed != self._checkpoints:
            self._db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES if allowed else 0}")
            self._checkpoints = allowed
