"""Group commit: write jobs run on the event loop, everything that waits shares one transaction, and a COMMIT that may wait for
the disk leaves the loop.

docs/adr/0002-writer-on-the-loop.md says why. There is no linger for a job that somebody alone waits for: a commit begins as soon as
the one before it ended. Where several wait at a time the loop turns to its sockets a few times more, as long as that brings jobs.
Jobs behind, for which nobody waits, go with the next one, or begin one of their own soon. While a commit is under way nothing
touches the connection.
"""

import asyncio
import collections
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from aghbus.protocol.text import escape
from aghbus.store.engine import integrity
from aghbus.store.engine.commit_marker import MarkFile
from aghbus.store.engine.commit_policy import Pace
from aghbus.store.engine.gil_yield import with_room
from aghbus.store.engine.state import Memory
from aghbus.store.engine.transaction import NeedsFile, Transaction
from aghbus.store.errors import StoreUnavailable

T = TypeVar("T")
Job = Callable[[Transaction], T]

BATCH_JOBS: Final = 1024  # ours: past a few hundred messages a commit costs next to nothing per message
BATCH_SECONDS: Final = 0.05  # ours: how long jobs gather under load before they are committed
CROWD: Final = 2  # ours: so many jobs of one transaction that somebody waits for are several clients at a time
TURNS: Final = 4  # ours, of the loop in which none of a crowd comes: from a request on a socket to its job it takes two
ENOUGH_ROWS: Final = 512  # ours: those of a hundred messages; larger transactions gain little
SLICE_SECONDS: Final = 0.005  # ours: how long jobs keep the event loop before it turns to its other duties
BEHIND_SECONDS: Final = 0.01  # ours: how long jobs behind wait for a transaction that begins for another reason
REFUSED_COMMITS: Final = 8  # ours: commits during which nothing runs ahead, after a job that did needed the file
PATIENCE_MS: Final = 5000  # ours: how long BEGIN waits, off the loop, for a foreign tool that holds the write lock

# Result codes that say something about the disk, the file or another process, not about the job: sqlite.org/rescode.html
_ENVIRONMENT: Final = frozenset(
    [
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOTADB,
    ]
)
_log = logging.getLogger(__name__)


class Stats(msgspec.Struct):
    """Counters since the store was opened. `jobs` ran and were committed, `failed_jobs` raised, `reruns` are transactions run
    again because a job had written before it raised, `failed_commits` transactions that did not become durable."""

    commits: int = 0
    jobs: int = 0
    failed_jobs: int = 0
    reruns: int = 0
    failed_commits: int = 0
    largest_batch: int = 0


class _Entry:
    __slots__ = ("ahead", "behind", "error", "future", "job", "result")

    def __init__(self, job: Job[Any], future: asyncio.Future[Any], *, ahead: bool, behind: bool) -> None:
        self.job = job
        self.future = future
        self.ahead = ahead
        self.behind = behind
        self.result: Any = None
        self.error: Exception | None = None

    def resolve(self) -> None:
        if self.future.done():  # its waiter was cancelled
            return
        if isinstance(self.error, StopIteration):  # no future takes it
            self.future.set_exception(RuntimeError("the job raised StopIteration"))
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Writer:
    """The one writer of a store. `db` is a connection in autocommit mode, `executor` a single thread for its commits, `mark`
    where they are counted."""

    def __init__(self, db: sqlite3.Connection, memory: Memory, executor: Executor, mark: MarkFile) -> None:
        self._db = db
        self._mark = mark
        self._executor = executor
        self._tx = Transaction(db, memory)
        self._next = Transaction(db, memory)
        self._next_start = self._next.begin_job()
        self._refused = 0  # commits until jobs may run ahead again
        self._ahead: list[_Entry] = []  # ran in it while the one before was being committed
        self._waiting: collections.deque[_Entry] = collections.deque()
        self._batch: list[_Entry] = []
        self._crowded = False  # whether a crowd waited for the transaction before
        self._careful = False
        self._start = self._tx.begin_job()
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._pace = Pace(db)
        self.stats = Stats()
        self.writable = True
        self.last_error: str | None = None

    @property
    def backlog(self) -> int:
        """Jobs that wait for their transaction."""
        return len(self._waiting)

    def submit(self, job: Job[T], *, behind: bool = False, ahead: bool = False) -> asyncio.Future[T]:
        """Queues `job`; its future resolves to the job's result once that is durable.

        With `behind` nobody waits for it: no transaction begins for it alone within BEHIND_SECONDS. With `ahead` it may run while
        the transaction before its own is still being committed; when it asks for the file it is undone, and runs in its turn.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._closing:
            future.set_exception(StoreUnavailable("the store is closed", hint="the daemon is stopping"))
            return future
        self._waiting.append(_Entry(job, future, ahead=ahead, behind=behind))
        if ahead and self._next.ahead:
            loop.call_soon(self._run_ahead)
        if not behind:
            self._wake.set()
        elif self._timer is None:
            self._timer = loop.call_later(BEHIND_SECONDS, self._wake.set)
        return future

    def stop(self) -> None:
        """No further jobs: `run` returns when those that wait are through."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Runs and commits jobs until `stop`; failures of the store go to the jobs' futures and never end it."""
        try:
            while self._waiting or self._batch or not self._closing:
                await self._wake.wait()
                self._wake.clear()
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                if self._waiting or self._batch:
                    await self._transact()
                    if self._batch or (self._waiting and self._timer is None):
                        self._wake.set()  # the batch was full, or a part of the next one ran ahead
                    await asyncio.sleep(0)  # whoever waited for this commit goes on before the next one begins
        finally:
            self._closing = True
            self._fail([*self._batch, *self._ahead, *self._waiting], StoreUnavailable("the store was closed", hint=""))
            self._waiting.clear()

    async def _transact(self) -> None:
        if not self._batch:
            self._start = self._tx.begin_job()
        try:
            await self._begin()
            changes = self._db.total_changes
            await self._gather()
            changes = self._db.total_changes - changes
            if self._tx.rows.waiting or self._tx.entries or changes:
                await self._commit(changes)
            else:
                self._db.execute("COMMIT")  # nothing to write, so nothing to wait for
        except Exception as error:
            if not isinstance(error, sqlite3.Error):
                _log.exception("a transaction could not be written")
            self._give_up(error)
            return
        self._settle()

    async def _begin(self) -> None:
        self._careful = False
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if _primary(error) != sqlite3.SQLITE_BUSY:
                raise
            await self._in_thread(self._begin_patiently)

    def _begin_patiently(self) -> None:
        self._db.execute(f"PRAGMA busy_timeout = {PATIENCE_MS}")
        try:
            self._db.execute("BEGIN IMMEDIATE")
        finally:
            self._db.execute("PRAGMA busy_timeout = 0")

    async def _gather(self) -> None:
        """Runs waiting jobs, slice by slice, until none waits or the batch is full, or the next can run during its commit."""
        until = time.perf_counter() + BATCH_SECONDS
        while True:
            self._run_slice()
            if len(self._batch) >= BATCH_JOBS or time.perf_counter() >= until or self._next_can_wait():
                return
            if not self._waiting and not (self._crowded or _is_crowd(self._batch)):
                return
            if not await self._some_wait():
                return

    async def _some_wait(self) -> bool:
        """Lets the loop turn to its sockets; whether a job waits then."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if self._waiting:
                return True
        return False

    def _next_can_wait(self) -> bool:
        """Whether this transaction is large enough, and what comes next would run while it is being committed: else the thread
        and the loop would take turns."""
        return (
            bool(self._waiting) and self._waiting[0].ahead and not self._refused and self._tx.rows.size >= ENOUGH_ROWS
        )

    def _run_slice(self) -> None:
        until = time.perf_counter() + SLICE_SECONDS
        while self._waiting and len(self._batch) < BATCH_JOBS and not self._next_can_wait():
            entry = self._waiting.popleft()
            if entry.future.done():  # its waiter was cancelled before it began
                continue
            self._batch.append(entry)
            if self._careful:
                self._run_apart(entry)
            else:
                self._run(entry)
            if time.perf_counter() >= until:
                return

    def _run(self, entry: _Entry) -> None:
        mark = self._tx.begin_job()
        try:
            entry.result = entry.job(self._tx)
        except Exception as error:
            if _is_environment(error):
                raise
            if self._tx.torn:  # by rows of this job or of one before it: each alone shows which
                self._rerun()
                return
            entry.error = error
            if self._tx.written:
                self._rerun()
            else:
                self._tx.undo(mark)

    def _rerun(self) -> None:
        """What a job had written cannot be taken back alone: take everything back, and run all jobs that have not failed
        again, each in its own savepoint."""
        self._rollback()
        self.stats.reruns += 1
        self._careful = True
        self._db.execute("BEGIN IMMEDIATE")
        for entry in self._batch:
            if entry.error is None and not entry.future.cancelled():
                self._run_apart(entry)

    def _run_apart(self, entry: _Entry) -> None:
        mark = self._tx.begin_job()
        self._db.execute("SAVEPOINT job")
        try:
            entry.result = entry.job(self._tx)
            self._tx.write_rows()
        except Exception as error:
            if _is_environment(error):
                raise
            entry.error = error
            self._db.execute("ROLLBACK TO job")
            self._tx.undo(mark)
        self._db.execute("RELEASE job")

    async def _commit(self, changes: int) -> None:
        number, last_seq = self._mark.commits + 1, self._tx.memory.last_seq.value
        try:
            await self._write(number, changes)
        except Exception as error:
            if self._careful or _is_environment(error):
                raise
            _log.exception("rows of a transaction could not be written")
            self._rerun()  # one job has appended what cannot be written: the others must not suffer
            last_seq = self._tx.memory.last_seq.value
            await self._write(number, changes)
        self._mark.set(number, last_seq)
        if not self.writable:
            _log.warning("the store writes again")
        self.writable, self.last_error = True, None
        self.stats.commits += 1

    async def _write(self, number: int, changes: int) -> None:
        self._tx.memory.audit.flush(self._tx)
        size, write = changes + self._tx.rows.size, partial(self._write_rows, number)
        if self._pace.is_quick(size):
            self._pace.commit_here(size, write)
        else:
            await self._commit_in_thread(write)

    async def _commit_in_thread(self, write: Callable[[], None]) -> None:
        """Meanwhile jobs of the next transaction run, as far as they need nothing of the file."""
        committing = asyncio.get_running_loop().run_in_executor(self._executor, self._pace.commit, write)
        self._next.ahead = self._refused == 0
        self._refused = max(0, self._refused - 1)
        self._next_start = self._next.begin_job()
        self._run_ahead()
        try:
            await with_room(committing)
        finally:
            self._next.ahead = False

    def _run_ahead(self) -> None:
        until = time.perf_counter() + SLICE_SECONDS
        while self._next.ahead and self._waiting and self._waiting[0].ahead and len(self._ahead) < BATCH_JOBS:
            entry, mark = self._waiting[0], self._next.begin_job()
            if not entry.future.done():  # else its waiter was cancelled before it began
                try:
                    entry.result = entry.job(self._next)
                except NeedsFile:
                    self._next.undo(mark)
                    self._next.ahead = False
                    self._refused = REFUSED_COMMITS
                    return
                except Exception as error:
                    self._next.undo(mark)
                    entry.error = error
                self._ahead.append(entry)
            self._waiting.popleft()
            if time.perf_counter() >= until:
                asyncio.get_running_loop().call_soon(self._run_ahead)
                return

    def _put_back(self) -> None:
        """The transaction before did not become durable: nothing ran ahead of it."""
        self._next.undo(self._next_start)
        for entry in self._ahead:
            entry.result = entry.error = None
        self._waiting.extendleft(reversed(self._ahead))
        self._ahead.clear()

    def _write_rows(self, number: int) -> None:
        self._tx.write_rows()
        integrity.count(self._db, number)

    def _settle(self) -> None:
        for callback in self._tx.take_committed():
            try:
                callback()
            except Exception:
                _log.exception("a callback after a commit failed")
        batch, self._batch = self._batch, []
        self._crowded = _is_crowd(batch)
        self.stats.largest_batch = max(self.stats.largest_batch, len(batch))
        for entry in batch:
            if entry.error is None:
                self.stats.jobs += 1
            else:
                self.stats.failed_jobs += 1
            entry.resolve()
        if self._ahead:
            self._tx, self._next = self._next, self._tx
            self._start, self._batch, self._ahead = self._next_start, self._ahead, []

    def _give_up(self, error: Exception) -> None:
        """The transaction is not durable: memory as before, everybody who waited for it is told."""
        self._rollback()
        while self._waiting and len(self._batch) < BATCH_JOBS:  # one answer for a burst, not one attempt per job
            self._batch.append(self._waiting.popleft())
        cause = escape(str(error))
        if self.writable:
            _log.error("the store cannot write: %s", cause)
        self.writable, self.last_error = False, cause
        self.stats.failed_commits += 1
        batch, self._batch = self._batch, []
        self._fail(batch, StoreUnavailable(f"the store cannot write: {cause}", hint=_hint_of(error)))

    def _rollback(self) -> None:
        try:
            if self._db.in_transaction:  # SQLite may have rolled back by itself: sqlite.org/lang_transaction.html
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            _log.exception("a rollback failed")
        self._put_back()
        self._tx.undo(self._start)
        self._tx.rows.clear()

    def _fail(self, entries: list[_Entry], error: StoreUnavailable) -> None:
        for entry in entries:
            entry.fail(error)

    async def _in_thread(self, function: Callable[..., object], *args: object) -> None:
        await with_room(asyncio.get_running_loop().run_in_executor(self._executor, function, *args))


def _is_crowd(batch: list[_Entry]) -> bool:
    """Whether several wait for these jobs."""
    waited_for = (entry for entry in batch if not entry.behind)
    return len(list(islice(waited_for, CROWD))) == CROWD


def _primary(error: Exception) -> int:
    """The primary result code; 0 for errors that Python's module raises itself."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _hint_of(error: Exception) -> str:
    if _primary(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return "the file is damaged: stop the daemon, and see `aghd check-store`"
    if _primary(error) == sqlite3.SQLITE_READONLY:
        return "make the file and its file system writable"
    return "free disk space, or check the disk"


def _is_environment(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and _primary(error) in _ENVIRONMENT
