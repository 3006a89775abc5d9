"""Translates received envelopes into messages of a format, and records them in the history and the format's log."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.daemon.artifacts.store import Artifacts, ArtifactsUnreachable
from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import exception
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.bridge.adapters import AgentDirectory, FormatAdapters
from aghbus.daemon.bridge.format_log import keep_record
from aghbus.daemon.bridge.large_messages import fetch_large
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.nats.permission_errors import DeniedSubjects
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.spans import trace_ids
from aghbus.protocol.agh.envelope import Envelope, parse
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.nats.names import JETSTREAM_API
from aghbus.protocol.api.bridge import BridgeMessage
from aghbus.protocol.base.formats import Format
from aghbus.protocol.formats.attachments import not_fetched
from aghbus.protocol.formats.model import AgentMap, BridgedEnvelope, Delivered, Finding
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables.bridge import messages as bridge
from aghbus.store.tables.bridge.messages import BridgeEnvelope, StoredMessageHistory
from aghbus.store.tables.works import lifecycle

_log = logging.getLogger("aghbus.bridge")

_CHUNK_BYTES: Final = 262_144  # of envelopes per transaction: some milliseconds, or one large envelope


class StoredEnvelope(NamedTuple):
    """A stored envelope, parsed, with the message that was fetched for it (`carried`) or the findings that explain why not."""

    kept: BridgeEnvelope
    envelope: Envelope
    carried: Any = None
    findings: tuple[Finding, ...] = ()


def parse_stored(raw: bytes) -> Envelope | None:
    """Parse stored bytes at the envelope's own time, when it was fresh. None when current rules refuse it."""
    times = msgspec.json.decode(raw, type=_Times)
    now = times.ts if times.expires_at is None else min(times.ts, times.expires_at - 1)
    try:
        return parse(raw, now)
    except ProtocolError:
        return None  # stored by a version with other rules


def chunks(arrived: Sequence[StoredEnvelope]) -> Iterator[list[StoredEnvelope]]:
    """`arrived` in order, in chunks small enough for one transaction on the event loop."""
    chunk: list[StoredEnvelope] = []
    size = 0
    for item in arrived:
        if chunk and size + len(item.kept.raw) > _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += len(item.kept.raw)
    if chunk:
        yield chunk


@dataclass(frozen=True, slots=True, eq=False)
class InboundTranslator:
    """Parses stored envelopes, and translates them into messages inside a transaction."""

    settings: LiveSettings
    identity: Identity
    clock: Clock
    denied: DeniedSubjects
    counters: Counters
    agents: AgentDirectory
    formats: FormatAdapters
    artifacts: Artifacts

    async def read(self, name: str, kept: BridgeEnvelope) -> StoredEnvelope | None:
        """The parsed envelope, with the message of format `name` fetched when it carries a reference to one. None when the
        envelope can no longer be parsed.

        Raises ArtifactsUnreachable: fetching may succeed later. When the server denies access to the artifact store, that is
        permanent and becomes a finding.
        """
        envelope = parse_stored(kept.raw)
        if envelope is None:
            return None
        try:
            message, findings = await fetch_large(self.artifacts, name, envelope.extensions())
        except ArtifactsUnreachable as error:
            if not self.denied.refuses(JETSTREAM_API, self.clock.monotonic()):
                raise
            message, findings = None, (not_fetched(error.message),)
        return StoredEnvelope(kept, envelope, message, findings)

    def is_for_agent(self, kept: BridgeEnvelope, kinds: frozenset[str]) -> bool:
        """Whether the envelope is for our agent: directed to us, broadcast, or sent by our daemon to end an unanswered work.

        Envelopes that the lifecycle refused never are.
        """
        if kept.kind not in kinds or kept.outcome in ("ignored", "rejected"):
            return False
        if kept.direction != "in":
            return kept.ended_by_daemon
        return kept.recipient in self.identity or (kept.recipient is None and kept.kind in ("say", "capability"))

    def translate(
        self,
        tx: Transaction,
        name: Format,
        arrived: StoredEnvelope,
        known: Mapping[str, AgentMap],
        now: int | None = None,
    ) -> BridgeMessage | None:
        """The message for our agent, recorded as delivered; None when the envelope has no equivalent in this format.

        `known` is the agent map by channel, `now` Unix seconds (None: the clock).
        """
        kept = arrived.kept
        work = None
        if kept.work_id is not None:
            work = lifecycle.load(tx, kept.workspace_id, kept.channel, kept.work_id)
        delivered = self._deliver(tx, name, arrived, work, known, now)
        if delivered is None or delivered.message is None:
            return None
        _remember(tx, kept, name, delivered)
        return BridgeMessage(
            seq=kept.seq,
            format=name,
            message=delivered.message,
            findings=[*arrived.findings, *delivered.findings],
            native=delivered.native,
            envelope_id=kept.message_id,
            kind=kept.kind,
            sender=arrived.envelope.sender,
            trust=kept.trust,
            channel=kept.channel,
            work_id=kept.work_id,
            work_state=kept.state_after if work is None else work.state,
            work_role=None if work is None else lifecycle.role(tx, work.workspace_id, work.channel, work.work_id),
        )

    def _deliver(
        self,
        tx: Transaction,
        name: str,
        arrived: StoredEnvelope,
        work: WorkView | None,
        known: Mapping[str, AgentMap],
        now: int | None,
    ) -> Delivered | None:
        """The adapter's result, given the work in its state after the envelope."""
        kept = arrived.kept
        if work is not None and kept.state_after is not None:
            work = msgspec.convert({**msgspec.structs.asdict(work), "state": kept.state_after}, type(work))
        bridged = BridgedEnvelope(envelope=arrived.envelope, work=work, outcome=kept.outcome, carried=arrived.carried)
        us = self.identity.receiver_of(arrived.envelope)
        agents = known[kept.channel] if us == self.identity.self_id else None
        context = self.agents.context(kept.channel, us, kept.workspace_id, agents)
        if now is not None:
            context = msgspec.structs.replace(context, now=now)
        history = StoredMessageHistory(tx, name, kept.workspace_id, kept.channel, us)
        try:
            return self.formats.get(name).deliver(bridged, context, history)
        except Exception as error:  # a bug triggered by one envelope must not stop all later ones
            tx.after_commit(partial(self._not_delivered, error, name, kept.seq, trace_ids(arrived.envelope)))
            return None

    def _not_delivered(self, error: Exception, name: str, seq: int, trace: dict[str, str]) -> None:
        self.counters.add("internal_errors")
        exception(_log, "cannot deliver an envelope", error, format=name, seq=seq, **trace)


class _Times(msgspec.Struct):
    ts: int
    expires_at: int | None = None


def _remember(tx: Transaction, kept: BridgeEnvelope, name: Format, delivered: Delivered) -> None:
    """Record the message as delivered, and add its row to the log of the format."""
    bridge.remember(
        tx,
        kept,
        name,
        "in",
        message=delivered.message,
        foreign_id=delivered.foreign_id,
        scope=delivered.scope,
        native=delivered.native,
    )
    settles = not kept.ended_by_daemon  # else the question's time to live continues
    keep_record(tx, name, "in", delivered, at_ms=kept.received_ms, seq=kept.seq, settles=settles)
