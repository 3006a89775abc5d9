"""Watching the deadlines of works: when one passes, the work is closed on both sides by a receipt or trace of ours."""

import asyncio
from typing import Any, Final

from aghbus.daemon.send.closing import close_unanswered
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.state.context import Core
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.lifecycle import WorkView
from aghbus.store.apply_effects import Applied
from aghbus.store.engine.transaction import Transaction
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import deadlines, works
from aghbus.store.tables.deadlines import Overdue
from aghbus.store.tables.outbox import Outgoing

_LONGEST: Final = 60.0  # seconds between two looks: a wall clock may be set while we wait
_AFTER_FAILURE: Final = 1.0  # seconds


class Deadlines:
    """One task over all works that have a deadline."""

    def __init__(self, core: Core, publisher: Publisher) -> None:
        self._core = core
        self._publisher = publisher
        self._bell = asyncio.Event()

    def note(
        self,
        tx: Transaction,
        envelope: Envelope,
        applied: Applied,
        accept_within: float | None = None,
        progress_within: float | None = None,
    ) -> None:
        """An envelope was applied in `tx`: the limits (seconds; None: as configured) of a work that it opened or moved."""
        work = applied.after
        if work is None:
            return
        if applied.before is None:
            configured = self._core.settings.work
            accept = configured.accept_within if accept_within is None else accept_within
            progress = configured.progress_within if progress_within is None else progress_within
            if self._core.identities.part_in(work) is not None and (accept or progress):
                now_ms = self._core.steps.settle(tx)
                deadlines.begin(tx, work, _millis(accept), _millis(progress), now_ms)
                tx.after_commit(self._bell.set)
            return
        if not works.has_deadline(tx, work):
            return
        now_ms = self._core.steps.settle(tx)
        traced = envelope.kind == "trace"
        accepted = applied.before.state == "submitted" and work.state != "submitted"
        deadlines.moved(tx, work, accepted=accepted, traced=traced, now_ms=now_ms)

    async def run(self) -> None:
        """Close what is overdue, until cancelled."""
        while True:
            self._bell.clear()
            try:
                rows, due_ms = await self._core.store.write(self._close_overdue)
            except StoreUnavailable:
                await asyncio.sleep(_AFTER_FAILURE)
                continue
            if rows:
                self._publisher.enqueue(rows)
                self._core.announcer.ring(max(row.seq for row in rows))
            await self._pause(due_ms)

    async def _pause(self, due_ms: int | None) -> None:
        left = _LONGEST if due_ms is None else self._core.steps.seconds_until(due_ms)
        try:
            async with asyncio.timeout(min(max(left, 0.0), _LONGEST)):
                await self._bell.wait()
        except TimeoutError:
            return

    def _close_overdue(self, tx: Transaction) -> tuple[list[Outgoing], int | None]:
        rows: list[Outgoing] = []
        for late in deadlines.overdue(tx, self._core.steps.settle(tx)):
            work = works.load(tx, late.workspace_id, late.channel, late.work_id)
            if work is not None and not work.is_terminal:
                kind, body = self._verdict(work, late)
                rows += close_unanswered(tx, self._core, work, kind, body)
                self._core.counters.add("deadlines.passed")
            deadlines.lift(tx, late)
        return rows, deadlines.next_due_ms(tx)

    def _verdict(self, work: WorkView, late: Overdue) -> tuple[str, dict[str, Any]]:
        """How the side that we are ends it: the initiator cancels, the target refuses or fails."""
        waiting = late.accept_ms is not None and work.state == "submitted"
        limit = late.accept_ms if waiting else late.progress_ms
        why = f"{'not accepted' if waiting else 'no progress'} within {(limit or 0) / 1000:g} s"
        receipt = {"for_id": work.opening_id, "detail": why}
        if work.initiator in self._core.identities:
            return "receipt", {**receipt, "status": "canceled"}
        if waiting:
            return "receipt", {**receipt, "status": "rejected", "reason_code": "busy"}
        return "trace", {"state": "failed", "message": why}


def _millis(seconds: float) -> int | None:
    return int(seconds * 1000) if seconds else None
