"""Sending: one transaction that holds the envelope, the change of our own work and the outbox row; then yes; then publish."""

from typing import Any

from msgspec import json

from aghbus.daemon.core import Core
from aghbus.daemon.deadlines import Deadlines
from aghbus.daemon.failpoints import failpoint
from aghbus.daemon.publisher import Publisher
from aghbus.protocol.control import OutboxState, Sent
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import InvalidRequest, Refused, Unavailable
from aghbus.protocol.lifecycle import State
from aghbus.protocol.sending import Draft, apply_own, build
from aghbus.store.apply import Applied, load_view, send
from aghbus.store.envelopes import find_sent
from aghbus.store.outbox import Outgoing, load_queued
from aghbus.store.transaction import Transaction


class Sender:
    """The one way out for everything that must survive a crash."""

    def __init__(self, core: Core, publisher: Publisher, deadlines: Deadlines) -> None:
        self._core = core
        self._publisher = publisher
        self._deadlines = deadlines

    async def send(
        self,
        draft: Draft,
        *,
        repeats: frozenset[str] | None = None,
        accept_within: float | None = None,
        progress_within: float | None = None,
    ) -> Sent:
        """Commit `draft` and hand it to the publisher; what it answers is true whatever happens next.

        `repeats`: the caller chose the id, so the same request again gives the first one's answer; it names the fields that the
        caller chose beside kind, receiver and content. The limits, in seconds, are deadlines of a work that this opens
        (None: as configured, 0: none). Raises InvalidRequest, Refused (our own copy of
        the work forbids it, or the id is taken by other content), Unavailable.
        """
        core = self._core
        if core.draining:
            raise Unavailable("the daemon is shutting down", hint="try again when it is back")
        envelope = build(draft, core.clock.seconds())
        if len(envelope.raw) > core.link.max_payload:
            raise InvalidRequest(
                f"the envelope has {len(envelope.raw)} bytes, over the broker's limit of {core.link.max_payload}",
                hint="send a reference (artifact_refs) instead of the content, or raise max_payload of the broker",
            )

        def job(tx: Transaction) -> tuple[Sent, list[Outgoing]]:
            if repeats is not None and (first := self._earlier(tx, envelope, repeats)) is not None:
                return first, []
            view = load_view(tx, envelope, core.us)
            own = apply_own(envelope, view.work, view.room)
            applied = send(tx, envelope, own, us=core.us, now_ms=core.clock.millis())
            self._deadlines.note(tx, envelope, applied, accept_within, progress_within)
            failpoint("send.decided")
            state = applied.after.state if applied.after is not None else None
            return _sent(envelope.document(), applied.queued[-1], state, "queued"), outgoing(tx, applied)

        sent, rows = await core.store.write(job)
        failpoint("send.committed")
        if rows:
            core.counters.add(f"sent.{envelope.kind}")
            self._publisher.enqueue(rows)
            core.announcer.ring(sent.seq)
        return sent

    def _earlier(self, tx: Transaction, envelope: Envelope, chosen: frozenset[str]) -> Sent | None:
        found = find_sent(tx, envelope.workspace_id, envelope.id)
        if found is None:
            return None
        if _content(found.raw, chosen) != _content(envelope.raw, chosen):
            raise Refused(f"id: {envelope.id} was already sent with other content", code="conflict")
        return _sent(json.decode(found.raw), found.seq, None, found.state or "published")


def outgoing(tx: Transaction, applied: Applied) -> list[Outgoing]:
    """The rows that a job has put into the outbox, as the publisher takes them."""
    return [row for seq in applied.queued for row in load_queued(tx, seq - 1, 1)]


def _content(raw: bytes, chosen: frozenset[str]) -> dict[str, object]:
    """What makes two envelopes the same request: what the caller said, not what the daemon filled in."""
    document: dict[str, object] = json.decode(raw)
    return {key: document.get(key) for key in {"workspace_id", "channel", "kind", "to", "body", "ext"} | chosen}


def _sent(document: dict[str, Any], seq: int, work_state: State | None, state: OutboxState) -> Sent:
    return Sent(
        id=document["id"],
        seq=seq,
        kind=document["kind"],
        workspace_id=document["workspace_id"],
        channel=document["channel"],
        to=document.get("to"),
        thread_id=document.get("thread_id"),
        direct_id=document.get("direct_id"),
        work_id=document.get("work_id"),
        work_state=work_state,
        state=state,
    )
