"""Sending: one transaction commits the envelope, the change of our own work and the outbox row; then it is published."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec import json

from aghbus.daemon.base.failpoints import ARMED, failpoint
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.nats.link import Link
from aghbus.daemon.send.deadlines import Deadlines
from aghbus.daemon.send.drafts import check_size
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.send.secret_guard import SecretGuard
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.lanes import Lanes
from aghbus.daemon.state.spans import EnvelopeSpans
from aghbus.host.tracing import KEYS as TRACE_KEYS
from aghbus.protocol.agh.delivery.order import AFTER
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.handover import ACCEPT_KEY
from aghbus.protocol.agh.lifecycle import CONTINUES, Reactions, State
from aghbus.protocol.agh.send import Draft, apply_own, build
from aghbus.protocol.api.messages import OutboxState, SendResponse
from aghbus.protocol.base.errors import InvalidRequest, Refused, Unavailable
from aghbus.store.apply_effects import Application, load_own
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables.envelopes import find_sent
from aghbus.store.tables.outbox import Outgoing, following
from aghbus.store.tables.works import lifecycle

T = TypeVar("T")
# Extensions that the daemon sets, other ones for each repetition of a request.
_OURS: Final = (AFTER, CONTINUES, ACCEPT_KEY, *TRACE_KEYS)


class Sender:
    """Sends everything that must survive a crash."""

    def __init__(
        self,
        context: DaemonContext,
        store: Store,
        link: Link,
        guard: SecretGuard,
        deadlines: Deadlines,
        publisher: Publisher,
        notifier: Notifier,
        lanes: Lanes,
        spans: EnvelopeSpans | None = None,
    ) -> None:
        """With `spans`, what is sent is traced."""
        self.closed = False
        self._store = store
        self._clock = context.clock
        self._publisher = publisher
        self._notifier = notifier
        self._counters = context.counters
        self._guard = guard
        self._batch = partial(Batch, context.identity, link, guard, deadlines, lanes, spans)

    def close(self) -> None:
        """Refuse everything from now on: the daemon is shutting down."""
        self.closed = True

    def send_all(self, job: Callable[[Transaction, "Batch"], T]) -> Awaitable[T]:
        """Run `job` in one transaction: the messages of the batch are committed with everything else it writes, or nothing is.

        They are published after the commit, before the result. The job may run twice, like every job of the store. Raises
        Unavailable, the result what the job raises, and StoreUnavailable.
        """
        if self.closed:
            raise Unavailable("the daemon is shutting down", hint="try again when it is back")
        sending = self._store.submit(partial(self._run, job))
        sending.add_done_callback(self._guard.sent)
        return sending

    def _run(self, job: Callable[[Transaction, "Batch"], T], tx: Transaction) -> T:
        batch = self._batch(tx, self._clock.millis())
        result = job(tx, batch)
        if batch.rows:
            tx.after_commit(partial(self._committed, batch.rows, batch.kinds))
        return result

    def _committed(self, rows: list[Outgoing], kinds: list[str]) -> None:
        if ARMED:
            failpoint("send.committed")
        for kind in kinds:
            self._counters[f"sent.{kind}"] += 1
        self._publisher.enqueue(rows)
        self._notifier.notify(max(rows).seq)


class Batch(msgspec.Struct):
    """The messages sent by one transaction at Unix millisecond `now_ms`, in order. After the commit `rows` go to the
    publisher, and `kinds` are counted."""

    _identity: Identity
    _link: Link
    _guard: SecretGuard
    _deadlines: Deadlines
    _lanes: Lanes
    _spans: EnvelopeSpans | None
    _tx: Transaction
    now_ms: int
    rows: list[Outgoing] = []
    kinds: list[str] = []

    def send(
        self,
        draft: Draft,
        *,
        repeats: frozenset[str] | None = None,
        allow_secrets: bool = False,
        replace_secrets: bool = False,
        accept_within: float | None = None,
        progress_within: float | None = None,
        reactions: Reactions = "none",
    ) -> SendResponse:
        """Queue `draft`.

        `repeats`: the caller chose the id, so that the same request again returns the first one's answer; it names the fields
        that the caller chose beside kind, receiver and content. Of a work that this opens, the limits, in seconds, are the
        deadlines (None: as configured, 0: none), and `reactions` says what of it reaches our inbox. `allow_secrets` turns the
        secret guard off; `replace_secrets` replaces what the guard finds in a message to a Go reference. Raises InvalidRequest,
        and Refused (our own copy of the work forbids it, or the id is taken by other content).
        """
        tx, now_ms = self._tx, self.now_ms
        for key in (AFTER, CONTINUES):
            if draft.ext is not None and key in draft.ext:
                raise InvalidRequest(f"ext: {key} is set by the daemon")
        if self._spans is not None:
            draft = self._spans.sending(tx, draft)
        draft, signer = following(tx, draft), self._identity.signer_of(draft.sender)
        envelope = build(draft, now_ms // 1000, signer)
        if replace_secrets and (changed := self._guard.replaced(tx, draft)) is not draft:
            envelope = build(changed, now_ms // 1000, signer)
        self._guard.check(tx, envelope, allowed=allow_secrets)
        check_size(envelope, self._link.max_payload)
        if repeats is not None and (first := self._earlier(envelope, repeats)) is not None:
            return first
        own = apply_own(envelope, *load_own(tx, envelope), reactions)
        applied = Application(tx, envelope.sender, now_ms).send(envelope, own)
        self._lanes.address(tx, envelope, now_ms)
        state = None
        if applied.after is not None:
            self._deadlines.note(tx, envelope, applied, accept_within, progress_within)
            state = applied.after.state
        if ARMED:
            failpoint("send.decided")
        self.rows += applied.outgoing
        self.kinds.append(envelope.kind)
        return SendResponse(
            id=envelope.id,
            seq=applied.outgoing[-1].seq,
            kind=envelope.kind,
            workspace_id=envelope.workspace_id,
            channel=envelope.channel,
            to=envelope.to,
            thread_id=envelope.container if envelope.surface == "thread" else None,
            direct_id=envelope.container if envelope.surface == "direct" else None,
            work_id=envelope.work_id,
            work_state=state,
            state="queued",
        )

    def add(self, kind: str, rows: list[Outgoing]) -> None:
        """Add outbox rows of an envelope of `kind` that was written by other code in this transaction."""
        self.rows += rows
        self.kinds.append(kind)

    def sent_before(self, workspace_id: str, message_id: str) -> SendResponse | None:
        """The message that was sent under this id earlier; None without one."""
        found = find_sent(self._tx, workspace_id, message_id)
        if found is None:
            return None
        document = json.decode(found.raw)
        work = None
        if document.get("work_id") is not None:
            work = lifecycle.load(self._tx, workspace_id, document["channel"], document["work_id"])
        return _sent(document, found.seq, work.state if work is not None else None, found.state or "published")

    def _earlier(self, envelope: Envelope, chosen: frozenset[str]) -> SendResponse | None:
        found = find_sent(self._tx, envelope.workspace_id, envelope.id)
        if found is None:
            return None
        if _content(found.raw, chosen) != _content(envelope.raw, chosen):
            raise Refused(f"id: {envelope.id} was already sent with other content", code="conflict")
        return _sent(json.decode(found.raw), found.seq, None, found.state or "published")


def _content(raw: bytes, chosen: frozenset[str]) -> dict[str, object]:
    """The fields by which two envelopes are the same request: those of the caller, not those that the daemon filled in."""
    document: dict[str, Any] = json.decode(raw)
    ext = {key: value for key, value in (document.get("ext") or {}).items() if key not in _OURS}
    return {
        "ext": ext,
        **{key: document.get(key) for key in {"workspace_id", "channel", "kind", "to", "body"} | chosen},
    }


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
