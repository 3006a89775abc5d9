"""Closing a work by local policy, always with a receipt or trace (specification, section 6), in the caller's transaction."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from aghbus.daemon.base.logs import event
from aghbus.daemon.send.handovers import Handovers
from aghbus.daemon.send.secret_guard import SecretGuard
from aghbus.daemon.state.context import DaemonContext
from aghbus.protocol.agh.bodies import receipt_body
from aghbus.protocol.agh.delivery.notices import TEXTS, WAITS_FOR, notice_id
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.send import Draft, apply_own, build
from aghbus.protocol.base.errors import InvalidRequest, Refused
from aghbus.store.apply_effects import Application, load_own
from aghbus.store.audit import events as audit
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import deadlines, inbox, retry
from aghbus.store.tables.bridge import messages as bridge
from aghbus.store.tables.envelopes import find_sent
from aghbus.store.tables.outbox import Outgoing, following
from aghbus.store.tables.retry import Failed
from aghbus.store.tables.works import handovers, lifecycle

_log: Final = logging.getLogger("aghbus.send")

_ASKS: Final = "is this work still known?"
_FORGOTTEN: Final = "the receiver does not know it any more: its store was lost, is an older one, or removed it"

AUTOMATIC: Final = "msg_auto_"
"""How the ids of messages begin that the daemon sends without a request of the agent."""
LATE: Final = f"{AUTOMATIC}not_accepted_"
"""How the ids of rejections begin that the daemon sends because its agent did not accept in time: the peer may be asked again."""
UNREPEATED: Final = f"{WAITS_FOR}admission_"
"""How the ids of answers begin that the daemon sends once: others may have invented the names to which they go."""


class WorkCloser:
    """Sends the receipts and traces by which the daemon itself accepts or closes works. Each method returns the outbox rows."""

    def __init__(self, context: DaemonContext, guard: SecretGuard, handovers: Handovers) -> None:
        self._guard = guard
        self._handovers = handovers
        self._identity = context.identity
        self._settings = context.settings
        self._clock = context.clock
        self._counters = context.counters
        self.on_handed_over: Callable[[], None] = lambda: None  # after the commit: there is a new deadline

    def close(
        self, tx: Transaction, work: WorkView, kind: str, body: dict[str, Any], message_id: str | None = None
    ) -> list[Outgoing]:
        """Send a closing receipt or trace to the other participant; nothing when our own copy of the work forbids it."""
        envelope, rows = self._send(tx, work, kind, body, message_id)
        if envelope is not None:
            why = body.get("detail") or body.get("message")
            audit.note_policy(tx, self._clock.millis(), "work_closed", why, envelope=envelope)
        return rows

    def reject_late(self, tx: Transaction, work: WorkView, why: str) -> list[Outgoing]:
        """Reject a work that our agent has not accepted in time."""
        body = receipt_body(work.opening_id, "rejected", "busy", why)
        return self.close(tx, work, "receipt", body, self._clock.mint(LATE))

    def close_unanswered(self, tx: Transaction, work: WorkView, kind: str, body: dict[str, Any]) -> list[Outgoing]:
        """As `close`, when the other side did not answer in time. The bridge tells the agent that waits for the work."""
        rows = self.close(tx, work, kind, body)
        if work.initiator in self._identity:
            for row in rows:
                bridge.mark_ended_by_daemon(tx, row.seq)
        return rows

    def accept(self, tx: Transaction, work: WorkView) -> list[Outgoing]:
        """Send the receipt that our agent has accepted a work; nothing when our own copy of the work forbids it."""
        return self._send(tx, work, "receipt", receipt_body(work.opening_id, "accepted"))[1]

    def say_that_it_waits(self, tx: Transaction, work: WorkView) -> list[Outgoing]:
        """Tell the initiator, once, that its work waits for admission; nothing when that was said before."""
        said = notice_id("admission", work.initiator, work.opening_id)
        if find_sent(tx, work.workspace_id, said) is not None:
            return []
        return self._send(tx, work, "say", {"text": TEXTS["admission"]}, said)[1]

    def say_that_it_is_released(self, tx: Transaction, work: WorkView) -> list[Outgoing]:
        """Tell the initiator that its work, which was held since a restore, is not held any more."""
        said = notice_id("worker", work.initiator, work.opening_id, self._clock.millis())
        return self._send(tx, work, "say", {"text": TEXTS["worker"]}, said)[1]

    def ask_whether_known(self, tx: Transaction, work: WorkView) -> list[Outgoing]:
        """Ask the target whether its store still has a work: by a receipt that has no effect there. If it is refused as
        `not_found`, the work ends (`after_failure`)."""
        return self._send(tx, work, "receipt", receipt_body(work.opening_id, "duplicate", "duplicate", _ASKS))[1]

    def after_failure(self, tx: Transaction, failed: Failed) -> list[Outgoing]:
        """Our message was refused or given up: count and record that, notify the agent in its inbox, and cancel the work that
        it should have opened. So ends a work that the target had taken, and does not know any more."""
        tx.after_commit(partial(self._counters.not_delivered, failed.kind, failed.state))
        audit.note_outgoing(tx, self._clock.millis(), failed.seq, failed.state, failed.detail)
        work = None
        if failed.work_id is not None:
            work = lifecycle.load(tx, failed.workspace_id, failed.channel, failed.work_id)
        opening = work is not None and work.opening_id == failed.message_id
        if work is not None and opening and handovers.successor(tx, work) is not None:
            return []
        unopened = work is not None and opening and not work.advanced
        detail = failed.detail
        if work is not None and unopened:
            rows, detail = self.hand_on(tx, work, detail, refused=bool(failed.reason))
            if rows:
                return rows
        if self._concerns_agent(failed, work):
            inbox.notify(tx, failed.seq, f"{failed.state}: {detail}")
        if work is None or work.is_terminal:
            return []
        if work.opening_id != failed.message_id:
            return self._end_forgotten(tx, work) if failed.reason == "not_found" else []
        if work.advanced and failed.detail != _FORGOTTEN:
            return []
        code = failed.reason or ("expired" if failed.state == "expired" else "not_found")
        why = f"the opening message was not answered: {detail}" if failed.detail != _FORGOTTEN else _FORGOTTEN
        return self.close_unanswered(tx, work, "receipt", receipt_body(work.opening_id, "canceled", code, why))

    def hand_on(self, tx: Transaction, work: WorkView, why: str, *, refused: bool) -> tuple[list[Outgoing], str]:
        """Open a work that our agent opened for a capability at the next peer, after it has ended at this one. Nothing when it was
        opened for one peer, or no other is left; then the text is `why` with the reason if its opening cannot be sent to the
        next one. `refused`: this peer is not asked again."""
        try:
            then = self._handovers.next(tx, work, why, refused=refused)
        except InvalidRequest as error:
            if work.is_terminal:  # else its end says so
                tx.after_commit(
                    partial(event, _log, logging.WARNING, "cannot hand a work over", work=work.work_id, cause=error)
                )
            return [], f"{why}; it cannot be handed over: {error.message}"
        if then is None:
            return [], why
        closing: list[Outgoing] = []
        if not work.is_terminal:
            detail = f"{why}: handed over to {then.peer}"
            closing = self.close(tx, work, "receipt", receipt_body(work.opening_id, "canceled", detail=detail))
            if not closing:
                return [], why
        tx.after_commit(self.on_handed_over)
        return closing + self._handovers.open(tx, work, then), why

    def may_wait(self, tx: Transaction, work: WorkView) -> bool:
        """Whether a work that was not accepted in time stays where it is: no other peer is left, and the caller gave no limit."""
        return self._handovers.may_wait(tx, work)

    def hand_on_from_gone(self, tx: Transaction) -> list[Outgoing]:
        """Hand works over whose peer is gone."""
        return [row for work, why in self._handovers.gone(tx) for row in self.hand_on(tx, work, why, refused=False)[0]]

    def _concerns_agent(self, failed: Failed, work: WorkView | None) -> bool:
        """Whether our agent is told: of its messages, of steps of its works, and when a work of its own did not end as our daemon
        ended it."""
        if not failed.message_id.startswith(AUTOMATIC):
            return True
        if failed.kind != "receipt" or work is None:
            return failed.kind == "trace"
        ended = failed.reason == "work_closed" and work.terminal_id == failed.message_id
        return ended and work.reactions == "all" and work.initiator in self._identity

    def _end_forgotten(self, tx: Transaction, work: WorkView) -> list[Outgoing]:
        seq = lifecycle.opened_seq(tx, work) if work.initiator in self._identity else None
        if seq is None or (opening := retry.give_up(tx, seq, "dead", _FORGOTTEN, "not_found", forgotten=True)) is None:
            return []
        return self.after_failure(tx, opening)

    def _send(
        self, tx: Transaction, work: WorkView, kind: str, body: dict[str, Any], message_id: str | None = None
    ) -> tuple[Envelope | None, list[Outgoing]]:
        own_id = self._identity.participant_in(work)
        other = None if own_id is None else work.other(own_id)
        if own_id is None or other is None:
            return None, []
        now_ms = self._clock.millis()
        now = now_ms // 1000
        draft = Draft(
            id=message_id or self._clock.mint(AUTOMATIC),
            workspace_id=work.workspace_id,
            channel=work.channel,
            kind=kind,
            sender=own_id,
            to=other,
            ts=now,
            expires_at=now + self._settings.current.defaults.directed_ttl,
            surface=work.surface,
            container=work.container,
            work_id=work.work_id,
            reply_to=work.opening_id if kind == "receipt" else None,
            trace_id=bridge.trace_id_of(tx, work.workspace_id, work.opening_id, work.initiator),
            causation_id=work.opening_id,
            body=body,
        )
        try:
            draft = self._guard.replaced(tx, following(tx, draft))
            envelope = build(draft, now, self._identity.signer_of(own_id))
            applied = Application(tx, own_id, now_ms).send(envelope, apply_own(envelope, *load_own(tx, envelope)))
            if applied.after is not None and applied.may_be_due:
                deadlines.moved(tx, applied.after, accepted=own_id == work.target, traced=False, now_ms=now_ms)
        except (InvalidRequest, Refused):
            return None, []
        return envelope, list(applied.outgoing)
