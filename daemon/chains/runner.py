"""The task that brings runs forward whenever their works move, somebody appears who was waited for, or a time is up."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aghbus.daemon.base.notifier import Announcer
from aghbus.daemon.chains.messages import Elsewhere, Formats
from aghbus.daemon.chains.steps import Steps
from aghbus.daemon.send.sender import Batch, Sender
from aghbus.daemon.state.context import Core
from aghbus.protocol.errors import Unavailable
from aghbus.store.engine.transaction import Transaction
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import chain_runs as chains

_log = logging.getLogger("aghbus.chains")

_PAGE: Final = 100  # runs looked at at once
_LONGEST: Final = 60.0  # seconds between two looks while anything runs: a wall clock may be set while we wait
_SHORTEST: Final = 0.05  # seconds between two looks, when the clock says that something is due
_UNREACHABLE: Final = (
    1.0  # seconds until a run tries again that did not get on with the artifact store, the link being up
)
_AFTER_FAILURE: Final = 1.0  # seconds
_LARGE: Final = 2  # ours, runs at a time that hold a message out of the artifact store: 4 MiB each


class ChainRunner:
    """Runs of one daemon. `bell` rings after every change of a run; `steps` is what changes them, through `change`.

    All runs are looked at together, in rounds. One that needs the artifact store goes on apart, in a task of its own: the
    others do not wait for a broker that does not answer.
    """

    def __init__(self, core: Core, sender: Sender, formats: Formats) -> None:
        self._core = core
        self._sender = sender
        self._formats = formats
        self._wake = Announcer(0)
        self._link = Announcer(0)
        self._tasks = asyncio.TaskGroup()
        self._apart: dict[str, asyncio.Task[None]] = {}  # by run id
        self._large = asyncio.Semaphore(_LARGE)
        self._bells = (core.announcer, core.roster.bell, self._link, self._wake)
        self.steps = Steps(core, formats)
        self.bell = Announcer(0)

    async def change(self, job: Callable[[Transaction, Batch], None]) -> None:
        """Carry out `job` in one transaction and tell everybody. Raises what it raises, and Unavailable while draining."""
        await self._sender.send_all(job)
        self._wake.ring()
        self._core.announcer.ring()
        self.bell.ring()

    def link_up(self) -> None:
        """The link is (back) up: runs that need the artifact store go on."""
        self._link.ring()

    async def run(self) -> None:
        """Follow every run in progress, until cancelled or the daemon drains."""
        async with self._tasks:
            await self._follow()
            for task in self._apart.values():
                task.cancel()

    # rounds

    async def _follow(self) -> None:
        while not self._core.announcer.closed:
            rung, wakes = self._rung(), self._wake.rings
            try:
                pause = await self._round()
            except StoreUnavailable:
                await asyncio.sleep(_AFTER_FAILURE)
                continue
            if pause is None:
                if self._wake.rings == wakes:
                    await self._wake.wait()
            elif pause:
                await self._pause(pause, rung)

    async def _round(self) -> float | None:
        """Look at everything that is due; the seconds to wait then, None while nothing is in progress."""
        core, apart = self._core, self._apart.keys()
        count, due_ms = await chains.in_progress(core.store.reader, apart=apart)
        if not count:
            return None
        found = await chains.pending(core.store.reader, core.workspace, core.steps.now_millis(), _PAGE, apart=apart)
        if core.draining:
            return _LONGEST
        looks = await asyncio.gather(*(self._look(run_id) for run_id in found), return_exceptions=True)
        for look in looks:
            if isinstance(look, BaseException):
                raise look  # now that none of the others goes on in the next round
        if any(looks):
            return 0.0  # what they opened or ended may have moved again, and more may wait behind the page
        left = _LONGEST if due_ms is None else core.steps.seconds_until(due_ms)
        return max(_SHORTEST, min(left, _LONGEST))

    def _rung(self) -> list[int]:
        return [bell.rings for bell in self._bells]

    async def _pause(self, seconds: float, rung: list[int]) -> None:
        """Until something is committed, somebody appears, the link is up, a run comes back, or `seconds` have passed; not when
        it has happened since the bells had `rung`."""
        if self._rung() != rung:
            return
        rings = [bell.next_ring() for bell in self._bells]
        try:
            await asyncio.wait(rings, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for ring in rings:
                ring.cancel()

    # one run

    async def _look(self, run_id: str) -> bool:
        """Whether anything changed. A run that needs the artifact store goes on apart, and holds nothing until it is its turn."""
        try:
            return await self._guarded(run_id, self._look_once(run_id))
        except Elsewhere:
            self._apart[run_id] = self._tasks.create_task(self._look_apart(run_id), name=f"chain run {run_id}")
            return False

    async def _look_apart(self, run_id: str) -> None:
        """Look, with the artifact store; the rounds have the run again when that is done, or may be tried again."""
        try:
            async with self._large:
                changed = await self._guarded(run_id, self._look_with_messages(run_id))
            if not changed:
                await self._link.wait(_UNREACHABLE)
        except StoreUnavailable:
            await asyncio.sleep(_AFTER_FAILURE)
        finally:
            del self._apart[run_id]
            self._wake.ring()

    async def _guarded(self, run_id: str, look: Awaitable[bool]) -> bool:
        """What `look` gives. Raises Elsewhere and StoreUnavailable; a run that stops at anything else fails."""
        try:
            changed = await look
        except (Elsewhere, StoreUnavailable):
            raise
        except Unavailable:
            return False  # draining: the next start looks again; or the artifact store is out of reach
        except Exception:
            _log.exception("a run stopped at a defect run=%s", run_id)
            self._core.counters.add("chains.defects")
            await self._core.store.write(lambda tx: self.steps.broken(tx, run_id))
            changed = True
        if changed:
            self.bell.ring()
        return changed

    async def _look_once(self, run_id: str) -> bool:
        return await self._sender.send_all(lambda tx, batch: self.steps.look(tx, batch, run_id))

    async def _look_with_messages(self, run_id: str) -> bool:
        """Look until everything is there that had to come from the artifact store, or go there. Raises Unreachable too."""
        settled: list[Elsewhere] = []
        try:
            while True:
                try:
                    return await self._look_once(run_id)
                except Elsewhere as needed:
                    await self._formats.settle(needed)
                    settled.append(needed)
        finally:
            self._formats.forget(settled)
