"""Sending: one transaction that holds the envelope, the change of our own work and the outbox row; then yes; then publish."""

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import json

from aghbus.daemon.base.failpoints import failpoint
from aghbus.daemon.send import secret_guard as secrets_guard
from aghbus.daemon.send.deadlines import Deadlines
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.state.context import Core
from aghbus.protocol.api.messages import OutboxState, SendResponse
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import InvalidRequest, Refused, Unavailable
from aghbus.protocol.lifecycle import State
from aghbus.protocol.send import Draft, apply_own, build
from aghbus.store.apply_effects import load_own, send
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import works
from aghbus.store.tables.envelopes import find_sent
from aghbus.store.tables.outbox import Outgoing

T = TypeVar("T")


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
        allow_secrets: bool = False,
        accept_within: float | None = None,
        progress_within: float | None = None,
    ) -> SendResponse:
        """Commit `draft` and hand it to the publisher; what it answers is true whatever happens next.

        `repeats`: the caller chose the id, so the same request again gives the first one's answer; it names the fields that the
        caller chose beside kind, receiver and content. The limits, in seconds, are deadlines of a work that this opens
        (None: as configured, 0: none). `allow_secrets` lets through what looks like a credential. Raises InvalidRequest,
        Refused (our own copy of the work forbids it, or the id is taken by other content), Unavailable.
        """

        def job(_tx: Transaction, batch: "Batch") -> SendResponse:
            return batch.send(
                draft,
                repeats=repeats,
                allow_secrets=allow_secrets,
                accept_within=accept_within,
                progress_within=progress_within,
            )

        return await self.send_all(job)

    async def send_all(self, job: Callable[[Transaction, "Batch"], T]) -> T:
        """Run `job` in one transaction; what it puts into the batch is committed with whatever else it writes, all or nothing.

        The job may run twice, as every job of the store. Raises what it raises, and Unavailable.
        """
        core = self._core
        if core.draining:
            raise Unavailable("the daemon is shutting down", hint="try again when it is back")

        def run(tx: Transaction) -> tuple[T, Batch]:
            batch = Batch(core, self._deadlines, tx)
            return job(tx, batch), batch

        result, batch = await core.store.submit(run)
        if batch.rows:
            failpoint("send.committed")
            for kind in batch.kinds:
                core.counters.add(f"sent.{kind}")
            self._publisher.enqueue(batch.rows)
            core.announcer.ring(max([row.seq for row in batch.rows]))
        return result


class Batch:
    """What one transaction sends, in order. `rows` go to the publisher once it is committed, `kinds` are counted."""

    def __init__(self, core: Core, deadlines: Deadlines, tx: Transaction) -> None:
        self._core = core
        self._deadlines = deadlines
        self._tx = tx
        self.rows: list[Outgoing] = []
        self.kinds: list[str] = []

    def send(
        self,
        draft: Draft,
        *,
        repeats: frozenset[str] | None = None,
        allow_secrets: bool = False,
        accept_within: float | None = None,
        progress_within: float | None = None,
    ) -> SendResponse:
        """As `Sender.send`, within the transaction."""
        core, tx = self._core, self._tx
        now_ms = core.clock.millis()
        envelope = build(draft, now_ms // 1000, core.identities.signer_of(draft.sender))
        secrets_guard.check(core, envelope, allowed=allow_secrets)
        if len(envelope.raw) > core.link.max_payload:
            raise InvalidRequest(
                f"the envelope has {len(envelope.raw)} bytes, over the broker's limit of {core.link.max_payload}",
                hint="send a reference (artifacts) instead of the content, or raise max_payload of the broker",
            )
        if repeats is not None and (first := self._earlier(envelope, repeats)) is not None:
            return first
        own = apply_own(envelope, *load_own(tx, envelope))
        applied = send(tx, envelope, own, us=envelope.sender, now_ms=now_ms)
        self._deadlines.note(tx, envelope, applied, accept_within, progress_within)
        failpoint("send.decided")
        state = applied.after.state if applied.after is not None else None
        self.add(envelope.kind, applied.outgoing)
        return _queued(envelope, applied.outgoing[-1].seq, state)

    def add(self, kind: str, rows: list[Outgoing]) -> None:
        """Rows of an envelope of `kind` that something else has put into the outbox in this transaction."""
        self.rows += rows
        self.kinds.append(kind)

    def sent_before(self, workspace_id: str, message_id: str) -> SendResponse | None:
        """What was sent under this id earlier; None when nothing was."""
        found = find_sent(self._tx, workspace_id, message_id)
        if found is None:
            return None
        document = json.decode(found.raw)
        work = None
        if document.get("work_id") is not None:
            work = works.load(self._tx, workspace_id, document["channel"], document["work_id"])
        return _sent(document, found.seq, work.state if work is not None else None, found.state or "published")

    def _earlier(self, envelope: Envelope, chosen: frozenset[str]) -> SendResponse | None:
        found = find_sent(self._tx, envelope.workspace_id, envelope.id)
        if found is None:
            return None
        if _content(found.raw, chosen) != _content(envelope.raw, chosen):
            raise Refused(f"id: {envelope.id} was already sent with other content", code="conflict")
        return _sent(json.decode(found.raw), found.seq, None, found.state or "published")


def _content(raw: bytes, chosen: frozenset[str]) -> dict[str, object]:
    """What makes two envelopes the same request: what the caller said, not what the daemon filled in."""
    document: dict[str, object] = json.decode(raw)
    return {key: document.get(key) for key in {"workspace_id", "channel", "kind", "to", "body", "ext"} | chosen}


def _queued(envelope: Envelope, seq: int, work_state: State | None) -> SendResponse:
    return SendResponse(
        id=envelope.id,
        seq=seq,
        kind=envelope.kind,
        workspace_id=envelope.workspace_id,
        channel=envelope.channel,
        to=envelope.to,
        thread_id=envelope.container if envelope.surface == "thread" else None,
        direct_id=envelope.container if envelope.surface == "direct" else None,
        work_id=envelope.work_id,
        work_state=work_state,
        state="queued",
    )


def _sent(document: dict[str, Any], seq: int, work_state: State | None, state: OutboxState) -> SendResponse:
    return SendResponse(
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
