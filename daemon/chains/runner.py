"""The task that brings runs forward whenever their works move, somebody appears who was waited for, or a time is up."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aghbus.daemon.announcer import Announcer
from aghbus.daemon.artifacts import Unreachable
from aghbus.daemon.chains.formats import Elsewhere, Formats
from aghbus.daemon.chains.steps import Steps
from aghbus.daemon.core import Core
from aghbus.daemon.outgoing import Batch, Sender
from aghbus.protocol.errors import Unavailable
from aghbus.store import chains
from aghbus.store.errors import StoreUnavailable
from aghbus.store.transaction import Transaction

_log = logging.getLogger("aghbus.chains")

_PAGE: Final = 100  # runs looked at at once
_LONGEST: Final = 60.0  # seconds between two looks while anything runs: a wall clock may be set while we wait
_SHORTEST: Final = 0.05  # seconds between two looks, when the clock says that something is due
_UNREACHABLE: Final = 1.0  # seconds until a run tries again whose broker could not be reached with the link up
_AFTER_FAILURE: Final = 1.0  # seconds
_LARGE: Final = 2  # ours, runs at a time that hold a message out of the artifact store: 4 MiB each


class ChainRunner:
    """Runs of one daemon. `bell` rings after every change of a run; `steps` is what changes them, through `change`."""

    def __init__(self, core: Core, sender: Sender, formats: Formats) -> None:
        self._core = core
        self._sender = sender
        self._formats = formats
        self._wake = Announcer(0)
        self._link = Announcer(0)
        self._large = asyncio.Semaphore(_LARGE)
        self._held = False  # whether a run waits for the broker, and nothing else
        self._bells = (core.announcer, core.roster.bell, self._link)
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
        core = self._core
        count, due_ms = await chains.in_progress(core.store.reader)
        if not count:
            return None
        found = await chains.pending(core.store.reader, core.workspace, core.steps.now_millis(), _PAGE)
        if core.draining:
            return _LONGEST
        self._held = False
        changed = await asyncio.gather(*(self._look(run_id) for run_id in found))
        if any(changed):
            return 0.0  # what they opened or ended may have moved again, and more may wait behind the page
        left = _LONGEST if due_ms is None else core.steps.seconds_until(due_ms)
        return max(_SHORTEST, min(left, _UNREACHABLE if self._held else _LONGEST))

    async def _look(self, run_id: str) -> bool:
        """Whether anything changed."""
        try:
            changed = await self._look_with_messages(run_id)
        except Unavailable:
            return False  # draining: the next start looks again
        except StoreUnavailable:
            raise
        except Exception:
            _log.exception("a run stopped at a defect run=%s", run_id)
            self._core.counters.add("chains.defects")
            await self._core.store.write(lambda tx: self.steps.broken(tx, run_id))
            changed = True
        if changed:
            self.bell.ring()
        return changed

    async def _look_with_messages(self, run_id: str) -> bool:
        """Look, and again with what had to come from the artifact store or go there. Raises what `Sender.send_all` raises."""
        try:
            return await self._sender.send_all(lambda tx, batch: self.steps.look(tx, batch, run_id))
        except Elsewhere as needed:
            async with self._large:
                return await self._look_again(run_id, needed)

    async def _look_again(self, run_id: str, needed: Elsewhere) -> bool:
        settled: list[Elsewhere] = []
        try:
            while self._core.link.state == "up":
                try:
                    await self._formats.settle(needed)
                except Unreachable:
                    break  # lost meanwhile, perhaps up again by now
                settled.append(needed)
                try:
                    return await self._sender.send_all(lambda tx, batch: self.steps.look(tx, batch, run_id))
                except Elsewhere as another:
                    needed = another
        finally:
            self._formats.forget(settled)
        self._held = True
        return False

    def _rung(self) -> list[int]:
        return [bell.rings for bell in self._bells]

    async def _pause(self, seconds: float, rung: list[int]) -> None:
        """Until something is committed, somebody appears, the link is up, or `seconds` have passed; not when it has happened
        since the bells had `rung`."""
        if self._rung() != rung:
            return
        rings = [bell.next_ring() for bell in self._bells]
        try:
            await asyncio.wait(rings, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for ring in rings:
                ring.cancel()
