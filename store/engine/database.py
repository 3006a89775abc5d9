"""The store: opening, checking and closing the file, and the two connections to it. Backups and the page check open files
of their own (`backup/`, `page_check.py`).

The writer is a plain connection used on the event loop, whose commits run in a thread (writer.py). The reader is an
aiosqlite connection that can only read and never blocks the writer, since the file is in WAL mode.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

from aghbus.host.files import make_private_folder
from aghbus.protocol.api.status import StoreStatus
from aghbus.protocol.base.histogram import Histogram
from aghbus.protocol.base.text import escape
from aghbus.store.engine import integrity, meta
from aghbus.store.engine.commit.policy import WAL_LIMIT
from aghbus.store.engine.commit.state import InMemoryState
from aghbus.store.engine.commit.watermark import WatermarkFile
from aghbus.store.engine.commit.writer import Job, Stats, Writer
from aghbus.store.engine.log import segments
from aghbus.store.engine.log.memory import LogMemory
from aghbus.store.engine.log.segments import SEGMENT
from aghbus.store.engine.page_check import PageCheck, boot_number
from aghbus.store.engine.reserve import Reserve
from aghbus.store.engine.rewrite import rewrite
from aghbus.store.engine.schema import check_owner, earlier, migrate, shipped
from aghbus.store.engine.sql import READ_HINT, DamagedEnvelopes, Reader, read
from aghbus.store.engine.store_lock import StoreLock
from aghbus.store.engine.wal_growth import wal_problem
from aghbus.store.errors import StoreDamaged, StoreError, StoreUnavailable, StoreUnopenable

_log = logging.getLogger("aghbus.store")

T = TypeVar("T")
Synchronous = Literal["full", "normal"]

_PAGE_BYTES: Final = (
    2_048  # a step writes one row into each of up to ten pages; a file that was made with other pages keeps them
)
_WRITER_CACHE_KIB: Final = 16_384  # the hot ends of four B-trees and their inner pages at 10^7 rows
_READER_CACHE_KIB: Final = 4_096  # pages of a listing are read once
_DEFERRED_WAIT: Final = 0.5  # seconds that a read waits for the store to commit what was deferred
_MAX_DEFERRED_BACKLOG: Final = 20_000  # jobs in the queue; above it `write_deferred` drops its job
_CHECKPOINT_BYTES: Final = (
    16 << 20
)  # of WAL, which a COMMIT then copies: a page that changes often, once for many commits
_READER_BUSY_TIMEOUT_MS: Final = 5_000  # only while WAL recovery or a foreign tool holds the file


class _Checks(NamedTuple):
    """What opening the file found, what reading finds, and the check of the pages if it runs beside the use of the file."""

    opened: integrity.Opened
    damaged: DamagedEnvelopes
    pages: PageCheck | None


class _FilesBeside(NamedTuple):
    """The files beside the store."""

    lock: StoreLock
    reserve: Reserve
    watermark: WatermarkFile


class Store:
    """An open store, made by `open`. `close` it, or the next start has to check the whole file."""

    def __init__(
        self,
        path: Path,
        synchronous: Synchronous,
        beside: _FilesBeside,
        db: sqlite3.Connection,
        reader: Reader,
        memory: InMemoryState,
        executor: ThreadPoolExecutor,
        segment: int,
        checks: _Checks,
    ) -> None:
        """Use `open`."""
        self.path: Final = path
        self.synchronous: Final = synchronous
        self.reader: Final = reader
        self.memory: Final = memory
        self._lock, self._reserve, self._watermark_file = beside
        self._db = db
        self._executor = executor
        self._opened, self._damaged, self._page_check = checks
        self._writer = Writer(db, memory, executor, beside.watermark, segment)
        self.submit: Final = self._writer.submit
        self._task = asyncio.create_task(self._writer.run(), name="store writer")
        self._closed = False
        self.deferred_lost = 0
        self._wal_problem: str | None = None
        check = checks.pages
        self._watch = None if check is None else asyncio.create_task(self._end_if_damaged(check))

    @classmethod
    async def open(
        cls, path: Path, *, synchronous: Synchronous = "full", name: str = "aghd", segment: int = SEGMENT
    ) -> "Store":
        """Opens or creates the store at `path`, brings its schema up to date and loads its state in memory.

        `name` names the holder in the lock file, `segment` is the number of envelopes that are indexed together. A file
        that was not closed is checked, before or beside its use (page_check.py), and every file is compared with its
        commit watermark: see `problems`. Raises StoreLocked, StoreTooNew, StoreDamaged or StoreUnopenable, and leaves
        nothing open then.
        """
        path = path.absolute()  # noqa: ASYNC240 - reads the working directory, once
        async with contextlib.AsyncExitStack() as undo:
            _make_folder(path)
            lock = StoreLock(path)
            lock.acquire(name)
            undo.callback(lock.release)
            reserve = Reserve(path)
            reserve.release()
            executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-commit")
            undo.callback(executor.shutdown)
            memory = InMemoryState()
            loop = asyncio.get_running_loop()
            db, opened, unchecked = await loop.run_in_executor(
                executor, _open_writer, path, synchronous, memory, segment
            )
            undo.callback(db.close)
            watermark = WatermarkFile(path, executor, opened.watermark.identity, memory.ledger)
            _write(watermark, path)
            reader = await _open_reader(path, memory.log)
            undo.push_async_callback(reader.close)
            damaged = DamagedEnvelopes()
            db.create_function("intact", 3, damaged.intact)
            await reader.create_function("intact", 3, damaged.intact)
            reader.here.create_function("intact", 3, damaged.intact)
            checks = _Checks(opened, damaged, PageCheck(path) if unchecked else None)
            reserve.keep()
            beside = _FilesBeside(lock, reserve, watermark)
            store = cls(path, synchronous, beside, db, reader, memory, executor, segment, checks)
            undo.pop_all()
            return store

    @property
    def stats(self) -> Stats:
        """Counters since the store was opened."""
        return self._writer.stats

    @property
    def commit_seconds(self) -> Histogram:
        """How long the COMMITs took since the store was opened."""
        return self._writer.commit_seconds

    @property
    def writable(self) -> bool:
        """False after a transaction failed to become durable, until one does."""
        return self._writer.writable

    @property
    def last_error(self) -> str | None:
        """Why the store is not writable, safe to print; None while it is."""
        return self._writer.last_error

    @property
    def problems(self) -> tuple[str, ...]:
        """What opening and reading found, as sentences for the operator. A loss is reported at each start until it is
        accepted."""
        loss = self._opened.loss
        losses = () if loss is None else (f"{loss}: {integrity.LOST_HINT}",)
        damage = None if self._page_check is None else self._page_check.damage
        unread = () if self.reader.error is None else (f"cannot be read: {self.reader.error}: {READ_HINT}",)
        grows = () if self._wal_problem is None else (self._wal_problem,)
        damages = () if damage is None else (f"{damage.cause}: {damage.hint}",)
        return tuple(f"the store has lost commits: {sentence}" for sentence in losses) + tuple(
            f"the store: {note}" for note in (*damages, *self._opened.notes, *self._damaged.problems(), *grows, *unread)
        )

    @property
    def backlog(self) -> int:
        """How many write jobs are queued."""
        return self._writer.backlog

    def submit_deferred(self, job: Job[T]) -> asyncio.Future[T]:
        """As `submit`, for a job that no caller waits for: it joins the next transaction, or starts one within
        DEFER_SECONDS (writer.py)."""
        return self.submit(job, deferred=True)

    def write_deferred(self, job: Job[Any], *, start_commit: bool = False) -> asyncio.Future[Any] | None:
        """Persist asynchronously what a crash may lose: the job joins the next transaction, and errors are logged and
        counted.

        With `start_commit` it starts a transaction itself. The future resolves when it is done; None when too many
        jobs wait, and it will not run. `deferred_lost` counts the jobs that did not become durable.
        """
        if self.backlog >= _MAX_DEFERRED_BACKLOG:
            self.deferred_lost += 1  # a slow disk must not exhaust the memory
            return None
        future = self.submit(job) if start_commit else self.submit_deferred(job)
        future.add_done_callback(self._deferred_done)
        return future

    def _deferred_done(self, future: asyncio.Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, StoreUnavailable):
            self.deferred_lost += 1  # `last_error` says why
        elif error is not None:
            _log.error("a deferred write failed", exc_info=error)

    async def write(self, job: Job[T]) -> T:
        """`submit` and wait. After a cancellation the job may or may not have run."""
        return await self.submit(job)

    async def commit_deferred(self) -> bool:
        """Commits what was deferred, so that a read shows it. Returns whether there was anything; a store that cannot write
        within half a second is to be read as it is."""
        if self._writer.idle:
            return False
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(_DEFERRED_WAIT):
                await self.write(lambda _tx: None)
        return True

    def refuse_on_full_disk(self) -> None:
        """Refuse writes until a `probe` succeeds, if the disk was full when the store was opened: what is left is for starts."""
        if not self._reserve.held:
            self._writer.refuse("the disk is full")

    async def probe(self) -> bool:
        """Whether a write becomes durable now, tried with a real one. A store that failed becomes writable again by it."""
        if not (self._reserve.held or self._reserve.keep()):
            return False
        self._writer.refuse(None)
        try:
            await self.write(lambda tx: meta.bump(tx.db, "probe"))
        except StoreUnavailable:
            return False
        return True

    async def rewrite(self) -> str | None:
        """Writes the file anew, so that no bytes of what was deleted are left in it. Returns why that failed, as a sentence.

        Jobs wait meanwhile: seconds for a gigabyte.
        """
        if self._page_check is not None:  # it reads the file in one transaction
            await self._page_check.ended()
        return await self._writer.run_between(partial(rewrite, path=self.path))

    async def check_wal(self) -> None:
        """Finds out whether and why the write-ahead log grows; `problems` has it until a later call."""
        size = _size(self.path.with_name(f"{self.path.name}-wal"))
        self._wal_problem = await asyncio.to_thread(wal_problem, self.path, size) if size > WAL_LIMIT else None

    async def status(self) -> StoreStatus:
        """The store as `aghctl status` shows it."""
        sql = "SELECT (SELECT min(seq) FROM log), (SELECT max(seq) FROM log)"
        first, last = next(iter(await read(self.reader, sql)))
        return StoreStatus(
            path=str(self.path),
            bytes=sum(_size(self.path.with_name(self.path.name + suffix)) for suffix in ("", "-wal", "-shm")),
            last_seq=last or 0,
            first_seq=first or 0,
            writable=self.writable,
            last_error=self.last_error,
            synchronous=self.synchronous,
        )

    async def ended(self) -> None:
        """Waits until the writer has ended: by `close`, or by an exception, which is raised; StoreDamaged when the check of
        the pages has found damage."""
        await asyncio.shield(self._task)
        if self._page_check is not None and self._page_check.damage is not None:
            raise self._page_check.damage

    async def _end_if_damaged(self, check: PageCheck) -> None:
        """Ends the writer when the check finds damage; the next start then checks the file before anything else."""
        await check.ended()
        if check.damage is not None:
            _log.error("%s; hint: %s", escape(str(check.damage)), check.damage.hint)
            with contextlib.suppress(StoreUnavailable):
                await self.write(lambda tx: meta.put(tx.db, "boot", 0))
            self._writer.stop()

    async def close(self) -> None:
        """Finishes the queued jobs, checkpoints the WAL, records that the store was closed, and releases it."""
        if self._closed:
            return
        self._closed = True
        if self._page_check is not None and self._watch is not None:
            await self._page_check.stop()
            await self._watch
        self._writer.stop()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.reader.close()
        sound = self._page_check is None or self._page_check.sound
        await asyncio.get_running_loop().run_in_executor(self._executor, _close_writer, self._db, sound)
        self._executor.shutdown()
        self._watermark_file.close()
        self._lock.release()


def _make_folder(path: Path) -> None:
    try:
        make_private_folder(path.parent)
    except OSError as error:
        raise StoreUnopenable(
            path, f"its folder cannot be made: {error.strerror}", hint="name another folder, or make this one writable"
        ) from None


def _open_writer(
    path: Path, synchronous: Synchronous, memory: InMemoryState, segment: int
) -> tuple[sqlite3.Connection, integrity.Opened, bool]:
    """The connection, what opening found, and whether the pages of the file have still to be checked."""
    db: sqlite3.Connection | None = None
    try:
        _make_private(path)
        # timeout=0: the loop never waits for a foreign lock; the writer waits in its thread.
        db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256)
        version = check_owner(db, path)
        _configure(db, synchronous)
        migrate(db, version, shipped())
        _check_moved(db, path)
        unchecked = version > 0 and not _is_sound(db, path)
        opened = integrity.check_watermark(db, path)
        meta.put(db, "boot", boot_number())
        meta.put(db, "closed", 0)
        memory.log.ids.open(opened.watermark.identity)
        segments.prepare(db, segment, memory.log.ids.id_key)
        memory.load(db)
        memory.ledger.gap = opened.difference
    except (sqlite3.Error, OSError, StoreError) as error:
        if db is not None:
            db.close()
        raise explained(path, error) from None
    return db, opened, unchecked


def _check_moved(db: sqlite3.Connection, path: Path) -> None:
    moved_ms = meta.get(db, meta.MOVED)
    if moved_ms:
        at = datetime.fromtimestamp(moved_ms / 1000, UTC)
        raise StoreUnopenable(
            path,
            f"was moved at {at:%Y-%m-%d %H:%M:%S} UTC by `aghctl backup --move`, and goes on where that backup was restored",
            hint="to go on here, stop the daemon there, and restore that backup here: `aghd restore … --replace`",
        )


def _make_private(path: Path) -> None:
    """The file for its owner only; SQLite gives the WAL the same mode."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
    finally:
        os.close(fd)


def _configure(db: sqlite3.Connection, synchronous: Synchronous) -> None:
    db.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # only has an effect on an empty file, as the next one
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # retention gives pages back
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {'FULL' if synchronous == 'full' else 'NORMAL'}")
    db.execute("PRAGMA secure_delete = ON")  # overwrites what is deleted: not the default of every build
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
    (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_BYTES // page_bytes}")
    db.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT}")


def _is_sound(db: sqlite3.Connection, path: Path) -> bool:
    """Whether the file was closed in order, or has passed the check of its pages; False: it is to be checked beside its use,
    because its last process ended without a loss of power. Raises StoreDamaged."""
    if meta.get(db, "closed") == 1:
        return True
    boot = boot_number()
    if boot and meta.get(db, "boot") == boot:
        return False
    integrity.check_pages(db, path)
    return True


def _close_writer(db: sqlite3.Connection, sound: bool) -> None:
    with contextlib.suppress(sqlite3.Error):  # a full or failing disk: the next start checks the file
        meta.put(db, "closed", int(sound))
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    db.close()


async def _open_reader(path: Path, log: LogMemory) -> Reader:
    reader = Reader(path, log)
    await reader
    try:
        await reader.execute("PRAGMA query_only = ON")
        reader.here.execute("PRAGMA query_only = ON")
        await reader.execute(f"PRAGMA busy_timeout = {_READER_BUSY_TIMEOUT_MS}")
        await reader.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB}")
        reader.here.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB}")
    except sqlite3.Error as error:
        await reader.close()
        raise explained(path, error) from None
    return reader


def _write(watermark: WatermarkFile, path: Path) -> None:
    try:
        watermark.write(sync=True)
    except OSError as error:
        raise explained(path, error) from None


def open_to_inspect(path: Path, *, any_schema: bool = False) -> sqlite3.Connection:
    """A connection that only reads, also while a daemon runs. Raises StoreError as `Store.open` does, also when there
    is no file, and unless `any_schema` when it has an earlier schema."""
    db: sqlite3.Connection | None = None
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        db.execute("PRAGMA query_only = ON")
        check_owner(db, path)
        if not any_schema and (cause := earlier(db)):
            hint = "the next start of its daemon updates it; `aghd restore --verify` checks a backup as it is"
            raise StoreUnopenable(path, cause, hint=hint)
    except (sqlite3.Error, StoreError) as error:
        if db is not None:
            db.close()
        raise explained(path, error) from None
    return db


def explained(path: Path, error: Exception) -> StoreError:
    """`error`, which came from SQLite or the file system, as an error of the store at `path`, with a hint."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, OSError):
        return StoreUnopenable(
            path, f"cannot be opened: {error.strerror}", hint="check its permissions and the free space of its disk"
        )
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreDamaged(path, f"is damaged: {escape(str(error))}", hint=integrity.DAMAGED_HINT)
    return StoreUnopenable(
        path, f"cannot be opened: {escape(str(error))}", hint="check its permissions and the free space of its disk"
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
