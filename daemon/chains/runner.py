"""The task that advances chain runs: when their works change, when an awaited peer appears, and when a timeout is due."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from aghbus.daemon.base.failpoints import failpoint
from aghbus.daemon.base.logs import exception
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.chains.artifact_files import FilesNotWritten
from aghbus.daemon.chains.messages import ArtifactNotFetched, ChainMessages
from aghbus.daemon.chains.steps import RunTransitions
from aghbus.daemon.send.sender import Batch, Sender
from aghbus.daemon.state.clock_changes import ClockChanges
from aghbus.daemon.state.presence import PresenceTable
from aghbus.protocol.base.errors import Unavailable
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import chain_runs as chains

_log = logging.getLogger("aghbus.chains")

_MAX_WAIT: Final = 60.0  # seconds between two rounds while any run is in progress: the wall clock may be set meanwhile
_MIN_WAIT: Final = 0.05  # seconds between two rounds when a timeout is due
_MAX_TRANSFERS: Final = 2  # concurrent runs with a message from or for the artifact store: 4 MiB each


class RunnerLimits(NamedTuple):
    """`page`: runs per round. Pauses in seconds: `artifact_pause` before a run asks an unreachable artifact store again (less
    when the link comes up), `store_pause` after a failed write to the store."""

    page: int = 100
    artifact_pause: float = 1.0
    store_pause: float = 1.0


@dataclass(slots=True, eq=False)
class ChainRunner:
    """Advances the runs of one daemon. `transitions` changes runs; `changes` is notified after every change of a run.

    Each round advances all runs that are due. A run that needs the artifact store continues in its own task, so that an
    unresponsive broker does not block the others.
    """

    workspace: str
    store: Store
    clock_changes: ClockChanges
    presence: PresenceTable
    notifier: Notifier
    counters: Counters
    sender: Sender
    messages: ChainMessages
    transitions: RunTransitions
    limits: RunnerLimits = RunnerLimits()  # noqa: RUF009 - immutable
    changes: Notifier = field(default_factory=Notifier, init=False)
    _wake: Notifier = field(default_factory=Notifier, init=False)
    _link: Notifier = field(default_factory=Notifier, init=False)
    _tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup, init=False)
    _transfers: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)  # by run id
    _transfer_slots: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, _MAX_TRANSFERS), init=False)

    @property
    def _notifiers(self) -> tuple[Notifier, ...]:
        return self.notifier, self.presence.changed, self._link, self._wake

    @property
    def draining(self) -> bool:
        """Whether the daemon is shutting down."""
        return self.sender.closed

    async def change(self, job: Callable[[Transaction, Batch], None]) -> None:
        """Run `job` in one transaction and notify the waiters. Raises what `job` raises, and Unavailable while draining."""
        await self.sender.send_all(job)
        self._wake.notify()
        self.notifier.notify()
        self.changes.notify()

    def link_up(self) -> None:
        """The link is up (again): runs that need the artifact store retry."""
        self._link.notify()

    async def run(self) -> None:
        """Advance every run in progress until cancelled or the daemon drains."""
        async with self._tasks:
            await self._follow()
            for task in self._transfers.values():
                task.cancel()

    # rounds

    async def _follow(self) -> None:
        while not self.notifier.closed:
            counts, wakes = self._counts(), self._wake.count
            try:
                pause = await self._round()
            except StoreUnavailable:
                await asyncio.sleep(self.limits.store_pause)
                continue
            if pause is None:
                if self._wake.count == wakes:
                    await self._wake.wait()
            elif pause:
                await self._pause(pause, counts)

    async def _round(self) -> float | None:
        """Advance every run that is due. Returns the seconds until the next round, None while no run is in progress."""
        apart = self._transfers.keys()
        count, due_ms = await chains.in_progress(self.store.reader, excluded=apart)
        if not count:
            return None
        found = await chains.pending(
            self.store.reader, self.workspace, self.clock_changes.now_millis(), self.limits.page, excluded=apart
        )
        if self.draining:
            return _MAX_WAIT
        results = await asyncio.gather(*(self._advance(run_id) for run_id in found), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result  # raised only after all of them have finished
        if any(results):
            return 0.0  # works may have changed again, and more runs may be due than fit a page
        left = _MAX_WAIT if due_ms is None else self.clock_changes.seconds_until(due_ms)
        return max(_MIN_WAIT, min(left, _MAX_WAIT))

    def _counts(self) -> list[int]:
        return [notifier.count for notifier in self._notifiers]

    async def _pause(self, seconds: float, counts: list[int]) -> None:
        """Wait until something is committed, a peer appears, the link is up, a transfer is done, or `seconds` have passed.

        Returns immediately when any of these happened since `counts` was taken.
        """
        if self._counts() != counts:
            return
        waits = [notifier.next() for notifier in self._notifiers]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    # one run

    async def _advance(self, run_id: str) -> bool:
        """Advance a run; whether it changed. One that needs the artifact store or writes files continues in its own task."""
        try:
            return await self._guarded(run_id, self._advance_once(run_id))
        except (ArtifactNotFetched, FilesNotWritten):
            self._transfers[run_id] = self._tasks.create_task(
                self._advance_with_transfers(run_id), name=f"chain run {run_id}"
            )
            return False

    async def _advance_with_transfers(self, run_id: str) -> None:
        """Advance a run with transfers. Rounds skip the run until this is done, or may be retried."""
        try:
            async with self._transfer_slots:
                changed = await self._guarded(run_id, self._transfer_and_advance(run_id))
            if not changed:
                await self._link.wait(self.limits.artifact_pause)
        except StoreUnavailable:
            await asyncio.sleep(self.limits.store_pause)
        finally:
            del self._transfers[run_id]
            self._wake.notify()

    async def _guarded(self, run_id: str, advance: Awaitable[bool]) -> bool:
        """The result of `advance`. Raises ArtifactNotFetched, FilesNotWritten, StoreUnavailable; other errors fail the run."""
        try:
            changed = await advance
        except (ArtifactNotFetched, FilesNotWritten, StoreUnavailable):
            raise
        except Unavailable:
            return False  # draining: the next start retries; or the artifact store is unreachable
        except Exception as error:
            exception(_log, "internal error in a chain run", error, run=run_id)
            self.counters.add("chains.internal_errors")
            await self.store.write(lambda tx: self.transitions.fail_internal(tx, run_id))
            changed = True
        if changed:
            self.changes.notify()
        return changed

    async def _advance_once(self, run_id: str) -> bool:
        return await self.sender.send_all(lambda tx, batch: self.transitions.advance(tx, batch, run_id))

    async def _transfer_and_advance(self, run_id: str) -> bool:
        """Advance a run, transferring messages from and to the artifact store and writing files as needed. Raises Unreachable
        too."""
        transferred: list[ArtifactNotFetched] = []
        written: list[FilesNotWritten] = []
        try:
            while True:
                try:
                    return await self._advance_once(run_id)
                except ArtifactNotFetched as needed:
                    await self.messages.transfer(needed)
                    transferred.append(needed)
                except FilesNotWritten as files:
                    await asyncio.to_thread(self.transitions.files.write, files)
                    failpoint("chains.applied")
                    written.append(files)
        finally:
            self.messages.forget(transferred)
            for one in written:
                self.transitions.files.forget(one.key)
