"""Group commit: write jobs run on the event loop, and all jobs that are queued share one transaction.

docs/adr/0002-writer-on-the-loop.md has the reasons. A single client's job is committed immediately: a transaction
begins as soon as the one before it ended. Where several clients wait at a time, the loop polls its sockets a few
times more before COMMIT, as long as that brings jobs. A deferred job joins the next transaction, or begins one
within a second. COMMIT runs in a thread unless recent commits were fast; nothing touches the connection meanwhile.
"""

import asyncio
import collections
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from aghbus.protocol.base.text import escape
from aghbus.store.engine.commit.policy import CommitPolicy
from aghbus.store.engine.commit.state import InMemoryState, numbers_of
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.commit.watermark import WatermarkFile
from aghbus.store.engine.gil_yield import yield_gil_while
from aghbus.store.engine.log import segments
from aghbus.store.engine.sql import READ_HINT, is_environment, primary_code
from aghbus.store.errors import StoreUnavailable

T = TypeVar("T")
Job = Callable[[Transaction], T]

BATCH_JOBS: Final = 1024  # past a few hundred messages a commit costs next to nothing per message
BATCH_SECONDS: Final = 0.05  # how long jobs are collected under load before they are committed
MIN_CONCURRENT_WAITERS: Final = 2  # so many awaited jobs in one transaction mean several clients at a time
MAX_LOOP_YIELDS: Final = 4  # that bring no job: from a request on a socket to its job it takes two
SLICE_SECONDS: Final = 0.005  # how long jobs keep the event loop before it turns to its other work
DEFER_SECONDS: Final = 1.0  # how long deferred jobs wait for a transaction that begins for another reason
_VALUES: Final = 8  # values that count as one row where it is not worth while to count the rows
BUSY_TIMEOUT_MS: Final = 5000  # how long BEGIN waits, off the loop, for a foreign tool that holds the write lock

_log = logging.getLogger(__name__)


class Stats(msgspec.Struct):
    """Counters since the store was opened. `jobs` ran and were committed, `failed_jobs` raised, `reruns` are
    transactions run again because a job had written before it raised, `failed_commits` transactions that did not
    become durable."""

    commits: int = 0
    jobs: int = 0
    failed_jobs: int = 0
    reruns: int = 0
    failed_commits: int = 0
    largest_batch: int = 0


class _QueuedJob(msgspec.Struct, eq=False):
    job: Job[Any]
    future: asyncio.Future[Any]
    deferred: bool
    result: Any = None
    error: Exception | None = None

    def fail(self, error: Exception) -> None:
        if self.future.done():  # its waiter was cancelled
            return
        if isinstance(error, StopIteration):  # no future takes it
            error = RuntimeError("the job raised StopIteration")
        self.future.set_exception(error)


class Writer:
    """The one writer of a store."""

    def __init__(
        self,
        db: sqlite3.Connection,
        memory: InMemoryState,
        executor: Executor,
        watermark_file: WatermarkFile,
        segment: int,
    ) -> None:
        """`db` is in autocommit mode, `executor` a single thread for its commits, `segment` the number of envelopes that
        are indexed together."""
        self._db = db
        self._executor = executor
        self._watermark_file = watermark_file
        self._memory = memory
        self._ledger = memory.ledger
        self._tx = Transaction(db, memory)
        self._queue: collections.deque[_QueuedJob] = collections.deque()
        self._between: collections.deque[tuple[Callable[[sqlite3.Connection], Any], asyncio.Future[Any]]] = (
            collections.deque()
        )
        self._batch: list[_QueuedJob] = []
        self._awaited = 0  # jobs of the batch that a caller waits for
        self._was_concurrent = False  # whether several callers waited for the last transaction
        self._isolated = False  # whether each job of this transaction runs in its own savepoint
        self._loop = asyncio.get_running_loop()
        self._due: asyncio.Future[None] = self._loop.create_future()  # done: a transaction is to begin
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._policy = CommitPolicy(db, db.execute("PRAGMA database_list").fetchone()[2] + "-wal")
        self._log = memory.log
        self._segment = segment
        self._next_segment = self._segment  # envelopes in the tail
        self.stats = Stats()
        self.commit_seconds = self._policy.seconds
        self.writable = True
        self.last_error: str | None = None
        self._refusal: str | None = None

    @property
    def backlog(self) -> int:
        """How many jobs are queued."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether no job is queued, and none waits for its commit."""
        return not (self._queue or self._batch)

    def submit(self, job: Job[T], *, deferred: bool = False) -> asyncio.Future[T]:
        """Queues a write job, in order of the calls; the future resolves to its result when that is durable.

        The job runs on the event loop inside a transaction that it shares with others. It decides first and writes
        then; it may run twice, so it changes nothing outside `tx` except in `after_commit`, or with a step in
        `tx.undo`. Its exception is set on its own future; StoreUnavailable on all when the transaction
        failed. A `deferred` job begins no transaction of its own within DEFER_SECONDS.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        if self._closing:
            future.set_exception(StoreUnavailable("the store is closed", hint="the daemon is stopping"))
            return future
        self._queue.append(_QueuedJob(job, future, deferred))
        if deferred and self._timer is None:
            self._timer = self._loop.call_later(DEFER_SECONDS, self._wake)
        elif not deferred and not self._due.done():
            self._due.set_result(None)
        return future

    def run_between(self, function: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Runs `function` in the store's thread, between two transactions; jobs wait meanwhile. The future has its result or
        exception."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._closing:
            future.set_exception(StoreUnavailable("the store is closed", hint="the daemon is stopping"))
            return future
        self._between.append((function, future))
        self._wake()
        return future

    def refuse(self, cause: str | None) -> None:
        """Fails every transaction that writes with `cause`, as the disk would; None ends that."""
        if cause is not None and self._refusal is None:
            self._failed(cause)
        self._refusal = cause

    def stop(self) -> None:
        """Accepts no further jobs: `run` returns when the queued ones are done."""
        self._closing = True
        self._wake()

    def _wake(self) -> None:
        if not self._due.done():
            self._due.set_result(None)

    async def run(self) -> None:
        """Runs and commits jobs until `stop`; failures of the store go to the jobs' futures and never end it."""
        try:
            while self._queue or self._between or not self._closing:
                await self._due
                self._due = self._loop.create_future()
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                if self._queue:
                    await self._transact()
                    if len(self._log.tail.rows) >= self._next_segment:
                        await self._write_segment()
                    if self._queue and self._timer is None:
                        self._wake()  # the batch was full
                    if self._due.done():  # callers that waited for this commit continue before the next transaction
                        await asyncio.sleep(0)
                while self._between:
                    await self._run_between(*self._between.popleft())
        finally:
            self._closing = True
            closed = StoreUnavailable("the store was closed", hint="")
            self._fail([*self._batch, *self._queue], closed)
            self._queue.clear()
            for _, future in self._between:
                if not future.done():
                    future.set_exception(closed)

    async def _transact(self) -> None:
        self._was_concurrent, self._awaited = self._awaited >= MIN_CONCURRENT_WAITERS, 0
        self._isolated = False
        try:
            try:
                self._db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if primary_code(error) != sqlite3.SQLITE_BUSY:
                    raise
                await self._in_thread(self._begin_when_unlocked)
            changes = self._db.total_changes
            self._run_slice()
            if self._queue or self._was_concurrent or self._awaited >= MIN_CONCURRENT_WAITERS:
                await self._run_more()
            changes = self._db.total_changes - changes
            if changes or any(self._tx.rows.values()) or self._ledger.events:
                await self._commit(changes)
            else:
                self._db.execute("COMMIT")  # nothing was written, so nothing waits for the disk
        except Exception as error:
            if not isinstance(error, sqlite3.Error):
                _log.exception("a transaction could not be written")
            self._give_up(error)
            return
        self._finish()

    def _begin_when_unlocked(self) -> None:
        self._db.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        try:
            self._db.execute("BEGIN IMMEDIATE")
        finally:
            self._db.execute("PRAGMA busy_timeout = 0")

    async def _run_more(self) -> None:
        """Runs further slices of jobs until no more come or the batch is full."""
        until = time.perf_counter() + BATCH_SECONDS
        while len(self._batch) < BATCH_JOBS and time.perf_counter() < until and await self._poll_for_jobs():
            self._run_slice()
            is_concurrent = self._was_concurrent or self._awaited >= MIN_CONCURRENT_WAITERS
            if not self._queue and not is_concurrent:
                return

    async def _poll_for_jobs(self) -> bool:
        """Lets the loop poll its sockets. Returns whether a job is queued then."""
        for _ in range(MAX_LOOP_YIELDS):
            await asyncio.sleep(0)
            if self._queue:
                return True
        return False

    def _run_slice(self) -> None:
        until = time.perf_counter() + SLICE_SECONDS
        while self._queue and len(self._batch) < BATCH_JOBS:
            queued = self._queue.popleft()
            if queued.future.done():  # its waiter was cancelled before it began
                continue
            savepoint, changes = self._begin_job(), self._db.total_changes
            self._batch.append(queued)
            self._awaited += not queued.deferred
            try:
                if self._isolated:
                    self._run_isolated(queued)
                else:
                    queued.result = queued.job(self._tx)
            except Exception as error:
                if self._isolated or is_environment(error):
                    raise
                if self._db.total_changes == changes and not self._tx.flushed:
                    queued.error = error
                    self._tx.roll_back(savepoint)
                else:
                    self._rerun()
            if time.perf_counter() >= until:
                return

    def _begin_job(self) -> int:
        """Marks the start of the next job. Returns the savepoint for `roll_back`."""
        savepoint, self._tx.flushed = len(self._tx.undo), False
        self._tx.undo.append(partial(self._memory.restore, numbers_of(self._memory)))
        return savepoint

    def _rerun(self) -> None:
        """Rolls everything back and runs all jobs that have not failed again, each in its own savepoint."""
        self._rollback()
        self.stats.reruns += 1
        self._isolated = True
        self._db.execute("BEGIN IMMEDIATE")
        for queued in self._batch:
            if queued.error is None and not queued.future.cancelled():
                self._run_isolated(queued)

    def _run_isolated(self, queued: _QueuedJob) -> None:
        savepoint = self._begin_job()
        self._db.execute("SAVEPOINT job")
        try:
            queued.result = queued.job(self._tx)
            self._tx.flush()
        except Exception as error:
            if is_environment(error):
                raise
            queued.error = error
            self._db.execute("ROLLBACK TO job")
            self._tx.roll_back(savepoint)
        self._db.execute("RELEASE job")

    async def _commit(self, changes: int) -> None:
        """The buffered rows are written on the loop: a thread would take the interpreter lock from it for each statement."""
        if self._refusal is not None:
            raise sqlite3.OperationalError(self._refusal)
        changes += sum(map(len, self._tx.rows.values())) // _VALUES
        try:
            self._tx.flush()
        except Exception as error:
            if self._isolated or is_environment(error):
                raise
            _log.exception("rows of a transaction could not be written")
            self._rerun()  # one job has appended rows that cannot be written: the others must not fail with it
        self._tx.undo.append(partial(setattr, self._ledger, "at_ms", self._ledger.at_ms))
        head = self._ledger.append(self._db, self._memory.last_seq)
        if self._policy.commits_on_loop(changes):
            self._policy.commit(on_loop=True)
        else:
            await self._in_thread(partial(self._policy.commit, on_loop=False))
        self._ledger.head = head
        if not self._watermark_file.pending:
            self._watermark_file.write_soon()
        if not self.writable:
            _log.warning("the store is writable again")
        self.writable, self.last_error = True, None
        self.stats.commits += 1

    async def _run_between(self, function: Callable[[sqlite3.Connection], T], future: asyncio.Future[T]) -> None:
        try:
            result = await self._in_thread(partial(function, self._db))
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)

    async def _write_segment(self) -> None:
        """Writes the indexes of the oldest envelopes of the tail. Searches do without them when that fails."""
        rows = self._log.tail.rows[: self._segment]
        try:
            await self._in_thread(partial(segments.write, self._db, rows))
        except sqlite3.Error as error:
            self._next_segment += self._segment // 4
            _log.warning("indexes of the log could not be written, and will be later: %s", escape(str(error)))
        else:
            self._next_segment = self._segment
            self._log.drop_tail(rows[-1][0])

    def _finish(self) -> None:
        memory, callbacks = self._memory, self._tx.callbacks.copy()
        for pending in (self._tx.callbacks, self._tx.undo, memory.ledger.records, memory.ledger.events):
            pending.clear()
        memory.inbox.changed_works.clear()
        if memory.events.pending:
            memory.events.publish()
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _log.exception("a callback after a commit failed")
        batch, self._batch = self._batch, []
        self.stats.largest_batch = max(self.stats.largest_batch, len(batch))
        for queued in batch:
            if queued.error is not None:
                self.stats.failed_jobs += 1
                queued.fail(queued.error)
                continue
            self.stats.jobs += 1
            if not queued.future.done():
                queued.future.set_result(queued.result)

    def _give_up(self, error: Exception) -> None:
        """The transaction is not durable: restores memory, and fails the jobs."""
        self._rollback()
        while self._queue and len(self._batch) < BATCH_JOBS:  # one answer for a burst, not one attempt per job
            self._batch.append(self._queue.popleft())
        cause = escape(str(error))
        self._failed(cause)
        self.stats.failed_commits += 1
        batch, self._batch = self._batch, []
        self._fail(batch, StoreUnavailable(f"the store cannot write: {cause}", hint=_hint_of(error)))

    def _failed(self, cause: str) -> None:
        if self.writable:
            _log.error("the store cannot write: %s", cause)
        self.writable, self.last_error = False, cause

    def _rollback(self) -> None:
        try:
            if self._db.in_transaction:  # SQLite may have rolled back automatically: sqlite.org/lang_transaction.html
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            _log.exception("a rollback failed")
        self._tx.roll_back(0)

    def _fail(self, batch: list[_QueuedJob], error: StoreUnavailable) -> None:
        for queued in batch:
            queued.fail(error)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await yield_gil_while(asyncio.get_running_loop().run_in_executor(self._executor, function))


def _hint_of(error: Exception) -> str:
    if primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return f"the file is damaged: stop the daemon, and see `aghd check-store`, or {READ_HINT}"
    if primary_code(error) == sqlite3.SQLITE_READONLY:
        return "make the file and its file system writable"
    return "free disk space, or check the disk"
