"""Ending a work by local policy, always with a receipt or trace that says so (spec section 6), inside the caller's transaction."""

from typing import Any

from aghbus.daemon.core import Core
from aghbus.protocol.errors import InvalidRequest, Refused
from aghbus.protocol.lifecycle import WorkView
from aghbus.protocol.sending import Draft, apply_own, build
from aghbus.store import inbox, works
from aghbus.store.apply import load_view, send
from aghbus.store.outbox import Outgoing, load_queued
from aghbus.store.retry import Failed
from aghbus.store.transaction import Transaction

_TOLD: tuple[str, ...] = ("say", "capability", "trace")  # what an agent sends itself; receipts are mostly the daemon's


def close_work(tx: Transaction, core: Core, work: WorkView, kind: str, body: dict[str, Any]) -> list[Outgoing]:
    """Send a closing receipt or trace of ours to the other participant; nothing when our own copy forbids it."""
    other = work.other(core.us)
    if other is None:
        return []
    now = core.clock.seconds()
    draft = Draft(
        id=core.clock.mint(),
        workspace_id=work.workspace_id,
        channel=work.channel,
        kind=kind,
        sender=core.us,
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
        envelope = build(draft, now)
        view = load_view(tx, envelope, core.us)
        applied = send(tx, envelope, apply_own(envelope, view.work, view.room), us=core.us, now_ms=core.clock.millis())
    except (InvalidRequest, Refused):
        return []
    return [row for seq in applied.queued for row in load_queued(tx, seq - 1, 1)]


def after_failure(tx: Transaction, core: Core, failed: Failed) -> list[Outgoing]:
    """A message of ours was given up: the agent finds it in its inbox, and a work that it should have opened is canceled."""
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
        "reason_code": "expired" if failed.state == "expired" else "not_found",
        "detail": f"the opening message was not answered: {failed.detail}",
    }
    return close_work(tx, core, work, "receipt", body)
