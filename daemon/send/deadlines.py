"""Ends of works that the daemon sends by itself, by a receipt or trace: when a deadline passes, or our agent has failed to handle
the opening in all its attempts, so that the opening is dead. A work for a capability is handed over instead."""

import asyncio
import contextlib
from functools import partial
from typing import Any, Final

from aghbus.daemon.base.failpoints import failpoint
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.base.waiting import wait_set
from aghbus.daemon.send.closing import LATE, WorkCloser
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.state.clock_changes import ClockChanges
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.inbox_waiters import InboxWaiters
from aghbus.daemon.state.presence import PresenceTable
from aghbus.protocol.agh.bodies import Receipt, receipt_body
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.handover import accept_limit
from aghbus.protocol.agh.lifecycle import WorkView, event_of
from aghbus.protocol.base.refused_text import REPLACEMENT
from aghbus.protocol.base.secret_patterns import without_secrets
from aghbus.store.apply_effects import Applied
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import deadlines, inbox
from aghbus.store.tables.deadlines import DeadOpening, Overdue
from aghbus.store.tables.outbox import Outgoing
from aghbus.store.tables.works import handovers, lifecycle, open_works

_LONGEST: Final = 60.0  # seconds between two checks: the wall clock may be set while we wait
_AFTER_FAILURE: Final = 1.0  # seconds
_PRESENCE: Final = 5.0  # seconds between two looks at the peers of works that may be handed over
_RECONNECT: Final = 60_000  # milliseconds after a start in which workers renew the leases of their last attempts
_STEP: Final = 100  # works that one transaction ends
OTHERS_ACCEPT_WITHIN: Final = 86_400
"""Seconds within which our agent accepts a work that one of others opened; then it is rejected as busy."""


class Deadlines:
    """One task for all works that have a deadline or a dead opening. Call `resume` before `run`."""

    def __init__(
        self,
        context: DaemonContext,
        store: Store,
        clock_changes: ClockChanges,
        closer: WorkCloser,
        publisher: Publisher,
        notifier: Notifier,
        waiters: InboxWaiters,
        presence: PresenceTable,
    ) -> None:
        self._store = store
        self._settings = context.settings
        self._identity = context.identity
        self._clock_changes = clock_changes
        self._closer = closer
        self._publisher = publisher
        self._notifier = notifier
        self._waiters = waiters
        self._presence = presence
        self._counters = context.counters
        self._changed = asyncio.Event()
        self._dead: set[int] = set()
        store.memory.inbox.on_dead = self._note_dead
        closer.on_handed_over = self._changed.set

    def note(
        self,
        tx: Transaction,
        envelope: Envelope,
        applied: Applied,
        accept_within: float | None = None,
        progress_within: float | None = None,
        *,
        by_other: bool = False,
    ) -> None:
        """Set or move the deadlines of the work that an envelope opened or advanced in `tx`. One of our agent that its target
        rejected is handed over, if it can be: `applied` gets the outbox rows.

        The limits are in seconds; None: as configured. `by_other`: one of others opened it.
        """
        work = applied.after
        if work is None:
            return
        if applied.before is None:
            configured = self._settings.current.work
            accept = configured.accept_within if accept_within is None else accept_within
            progress = configured.progress_within if progress_within is None else progress_within
            if by_other:
                accept = min(accept or OTHERS_ACCEPT_WITHIN, OTHERS_ACCEPT_WITHIN)
            sent_ms = None
            if work.target in self._identity and (asked := accept_limit(envelope.extensions())) is not None:
                accept, sent_ms = min(accept or asked, asked), 1000 * envelope.ts + 999  # `ts` is cut to seconds
            if self._identity.participant_in(work) is not None and (accept or progress):
                now_ms = self._clock_changes.now_after_clock_check(tx)
                deadlines.begin(tx, work, _millis(accept), _millis(progress), min(now_ms, sent_ms or now_ms))
                tx.after_commit(self._changed.set)
            return
        if applied.before.state == "submitted":
            self._hand_on(tx, envelope, applied, work)
        if not applied.may_be_due:
            return
        now_ms = self._clock_changes.now_after_clock_check(tx)
        by_target = envelope.sender == work.target  # its initiator neither accepts it nor makes progress
        traced = by_target and envelope.kind == "trace"
        said_so = applied.before.state == "submitted" or event_of(envelope) == "receipt:accepted"
        accepted = by_target and work.state != "submitted" and said_so
        deadlines.moved(tx, work, accepted=accepted, traced=traced, now_ms=now_ms)

    def _hand_on(self, tx: Transaction, envelope: Envelope, applied: Applied, work: WorkView) -> None:
        body = envelope.body
        if not isinstance(body, Receipt) or envelope.sender != work.target or work.initiator not in self._identity:
            return
        if body.status in ("expired", "unsupported") and body.for_id == work.opening_id:
            work = (
                lifecycle.load(tx, work.workspace_id, work.channel, work.work_id) or work
            )  # it was canceled for this answer
        elif work.state != "failed":
            return
        code = body.reason_code or body.status
        why = f"{code}: {body.detail}" if body.detail else code
        rows, _ = self._closer.hand_on(tx, work, why, refused=not envelope.id.startswith(LATE))
        if rows:
            applied.outgoing += tuple(rows)
            if applied.delivered and applied.seq is not None:  # our agent reads how the last one ends
                inbox.settle(tx, applied.seq)
                applied.delivered = False

    async def resume(self) -> None:
        """Find the openings that died before this start. Call it before any consumer leases. Raises StoreUnavailable."""
        self._dead.update(await deadlines.dead_openings(self._store.reader))
        until_ms = self._clock_changes.now_millis() + _RECONNECT
        await self._store.write(lambda tx: deadlines.spare(tx, until_ms))

    def _note_dead(self, seq: int) -> None:
        failpoint("inbox.dead")
        self._dead.add(seq)
        self._changed.set()

    async def run(self) -> None:
        """Close works that are overdue, or whose opening is dead, until cancelled."""
        while True:
            self._changed.clear()
            try:
                due_ms = await self._store.write(self._close_due)
            except StoreUnavailable:
                await asyncio.sleep(_AFTER_FAILURE)
                continue
            await self._pause(due_ms)

    async def _pause(self, due_ms: int | None) -> None:
        left = _LONGEST if due_ms is None else self._clock_changes.seconds_until(due_ms)
        await wait_set(self._changed, min(max(left, 0.0), _LONGEST))

    async def decline(self) -> None:
        """The daemon stops: works that our agent has not accepted, and that their initiators can give to another peer, go back."""
        with contextlib.suppress(StoreUnavailable):
            await self._store.write(self._decline)

    def _decline(self, tx: Transaction) -> None:
        for work, raw in handovers.unaccepted(tx):
            if accept_limit(decode_json(raw).get("ext") or {}) is not None:
                tx.after_commit(partial(self._publish, self._closer.reject_late(tx, work, "the daemon stops")))

    async def follow_presence(self) -> None:
        """Look at works that may be handed over when peers come and go, until cancelled."""
        while True:
            await self._presence.changed.wait(_PRESENCE)
            with contextlib.suppress(StoreUnavailable):
                if await handovers.any_in_progress(self._store.reader):
                    self._changed.set()

    def _close_due(self, tx: Transaction) -> int | None:
        """Close up to some works. Returns when the next deadline passes or the next lease expires; None without either."""
        now_ms = self._clock_changes.now_after_clock_check(tx)
        if inbox.expire_leases(tx, now_ms):  # also while no consumer looks
            tx.after_commit(self._waiters.wake_all)
        for seq in sorted(self._dead)[:_STEP]:
            self._close_dead(tx, seq)
        for late in deadlines.overdue(tx, now_ms, _STEP):
            work = lifecycle.load(tx, late.workspace_id, late.channel, late.work_id)
            deadlines.lift(tx, late)
            if work is not None and not work.is_terminal:
                self._close_overdue(tx, work, late, now_ms)
        if rows := self._closer.hand_on_from_gone(tx):
            tx.after_commit(partial(self._publish, rows))
        due = [at for at in (deadlines.next_due_ms(tx), inbox.due_ms(tx)) if at is not None]
        return min(due, default=None) if len(self._dead) <= _STEP else now_ms

    def _close_dead(self, tx: Transaction, seq: int) -> None:
        opening = deadlines.dead_opening(tx, seq)
        work = None if opening is None else lifecycle.load(tx, opening.workspace_id, opening.channel, opening.work_id)
        if opening is not None and work is not None and not work.is_terminal:
            kind, body = _failure(work, _given_up(opening), accepted=not open_works.is_unaccepted(tx, work))
            tx.after_commit(partial(self._publish, self._closer.close(tx, work, kind, body)))
            tx.after_commit(partial(self._counters.add, "inbox.given_up"))
        tx.after_commit(partial(self._dead.discard, seq))

    def _close_overdue(self, tx: Transaction, work: WorkView, late: Overdue, now_ms: int) -> None:
        ours, unaccepted, why = work.initiator in self._identity, late.accept_ms is not None, late.passed
        if ours and unaccepted:
            rows, why = self._closer.hand_on(tx, work, why, refused=False)
            if rows:
                tx.after_commit(partial(self._publish, rows))
                return
            if not late.without_progress and self._closer.may_wait(tx, work):
                deadlines.begin(tx, work, None, late.progress_ms, now_ms - (late.accept_ms or 0))
                return
        if ours:
            body = receipt_body(work.opening_id, "canceled", detail=why)
            closing = self._closer.close_unanswered(tx, work, "receipt", body)
            self._notify(tx, work, closing, f"canceled: {why}")
        elif unaccepted:
            closing = self._closer.reject_late(tx, work, why)
        else:
            closing = self._closer.close_unanswered(tx, work, *_failure(work, why, accepted=True))
        tx.after_commit(partial(self._publish, closing))
        tx.after_commit(partial(self._counters.add, "deadlines.passed"))

    def _publish(self, rows: list[Outgoing]) -> None:
        if rows:
            self._publisher.enqueue(rows)
            self._notifier.notify(rows[-1].seq)

    def _notify(self, tx: Transaction, work: WorkView, closing: list[Outgoing], why: str) -> None:
        """Tell our agent, the initiator, in its inbox that the work has ended."""
        if work.reactions == "all":
            for row in closing:
                inbox.notify(tx, row.seq, why)
            tx.after_commit(self._waiters.wake_all)


def _failure(work: WorkView, why: str, *, accepted: bool) -> tuple[str, dict[str, Any]]:
    """Kind and body by which the target ends a work."""
    if accepted:
        return "trace", {"state": "failed", "message": why}
    return "receipt", receipt_body(work.opening_id, "rejected", "busy", why)


def _given_up(opening: DeadOpening) -> str:
    """Why the work of a dead opening ends. A credential in the agent's own words stays here."""
    why = f"given up after {opening.attempts} attempt{'s' * (opening.attempts != 1)}"
    error = without_secrets(opening.last_error, REPLACEMENT)
    return f"{why}: {error}" if error else why


def _millis(seconds: float) -> int | None:
    return int(seconds * 1000) if seconds else None
