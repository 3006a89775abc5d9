"""Ending a work by local policy, always with a receipt or trace that says so (spec section 6), inside the caller's transaction."""

from typing import Any

from aghbus.daemon.state.context import Core
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import InvalidRequest, Refused
from aghbus.protocol.lifecycle import WorkView
from aghbus.protocol.send import Draft, apply_own, build
from aghbus.store.apply_effects import load_own, send
from aghbus.store.audit import events as audit
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import bridge_messages as bridge
from aghbus.store.tables import inbox, works
from aghbus.store.tables.outbox import Outgoing
from aghbus.store.tables.retry import Failed

_TOLD: tuple[str, ...] = ("say", "capability", "trace")  # what an agent sends itself; receipts are mostly the daemon's


def close_work(tx: Transaction, core: Core, work: WorkView, kind: str, body: dict[str, Any]) -> list[Outgoing]:
    """Send a closing receipt or trace of ours to the other participant; nothing when our own copy forbids it."""
    envelope, rows = _send_on(tx, core, work, kind, body)
    if envelope is not None:
        why = body.get("detail") or body.get("message")
        audit.note_policy(tx, core.clock.millis(), "work_closed", why, envelope=envelope)
    return rows


def accept_work(tx: Transaction, core: Core, work: WorkView) -> list[Outgoing]:
    """Send the receipt that our agent has taken a work; nothing when our own copy forbids it."""
    return _send_on(tx, core, work, "receipt", {"for_id": work.opening_id, "status": "accepted"})[1]


def _send_on(
    tx: Transaction, core: Core, work: WorkView, kind: str, body: dict[str, Any]
) -> tuple[Envelope | None, list[Outgoing]]:
    us = core.identities.part_in(work)
    other = None if us is None else work.other(us)
    if us is None or other is None:
        return None, []
    now = core.clock.seconds()
    draft = Draft(
        id=core.clock.mint(),
        workspace_id=work.workspace_id,
        channel=work.channel,
        kind=kind,
        sender=us,
        to=other,
        ts=now,
        expires_at=now + core.settings.defaults.directed_ttl,
        surface=work.surface,
        container=work.container,
        work_id=work.work_id,
        reply_to=work.opening_id if kind == "receipt" else None,
        causation_id=work.opening_id,
        body=body,
    )
    try:
        envelope = build(draft, now, core.identities.signer_of(us))
        applied = send(tx, envelope, apply_own(envelope, *load_own(tx, envelope)), us=us, now_ms=core.clock.millis())
    except (InvalidRequest, Refused):
        return None, []
    return envelope, applied.outgoing


def close_unanswered(tx: Transaction, core: Core, work: WorkView, kind: str, body: dict[str, Any]) -> list[Outgoing]:
    """As `close_work`, for what the other side did not do in time. An agent that waits for the work is told by the bridge."""
    rows = close_work(tx, core, work, kind, body)
    if work.initiator in core.identities:
        for row in rows:
            bridge.note_own_end(tx, row.seq)
    return rows


def after_failure(tx: Transaction, core: Core, failed: Failed, reason: str | None = None) -> list[Outgoing]:
    """A message of ours was given up: the agent finds it in its inbox, and a work that it should have opened is canceled.

    `reason` is the code with which the receiver's daemon refused it, if it did.
    """
    if failed.kind in _TOLD:
        inbox.notify(tx, failed.seq, f"{failed.state}: {failed.detail}")
    if failed.work_id is None:
        return []
    work = works.load(tx, failed.workspace_id, failed.channel, failed.work_id)
    if work is None or work.is_terminal or work.advanced or work.opening_id != failed.message_id:
        return []
    body = {
        "for_id": work.opening_id,
        "status": "canceled",
        "reason_code": reason or ("expired" if failed.state == "expired" else "not_found"),
        "detail": f"the opening message was not answered: {failed.detail}",
    }
    return close_unanswered(tx, core, work, "receipt", body)
