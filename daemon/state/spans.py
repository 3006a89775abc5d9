"""Spans of envelopes: one for what is sent, whose context travels in its `ext`, and one for what was processed.

Names and attributes follow OpenTelemetry's conventions for messaging. Ids come from peers: they are escaped and cut.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from aghbus.host.tracing import KEYS, Tracing, carrier_in, ids_of
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.agh.effects import Effect, Open
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.send import Draft
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables.envelopes import raw_of
from aghbus.store.tables.works import lifecycle

OPENINGS: Final = 4_096
"""Works in memory with the context of the message that opened them: else each message of a work reads its opening."""


class EnvelopeSpans:
    """Makes the spans of one daemon."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._openings: dict[tuple[str, str], Mapping[str, str]] = {}

    def sending(self, tx: Transaction, draft: Draft) -> Draft:
        """`draft` with the context of its span, which ends with the commit.

        The span is below the context that the draft carries, else below that of the message which opened its work.
        """
        parent = carrier_in(draft.ext) or self._of_opening(tx, draft)
        carrier = self._tracing.unsampled(parent)
        if carrier is None:
            attributes = _attributes("send", draft.channel, draft.id, draft.kind, draft.to, draft.work_id)
            span = self._tracing.start(f"send {draft.channel}", "producer", parent, attributes)
            tx.after_commit(span.end)
            carrier = span.carrier
        ext = {key: value for key, value in (draft.ext or {}).items() if key not in KEYS}
        return msgspec.structs.replace(draft, ext={**ext, **carrier})

    def processed(self, envelope: Envelope, received_ms: int, effects: Iterable[Effect]) -> None:
        """An envelope that was received at `received_ms`, Unix time, is committed, with these `effects`."""
        parent = _carrier(envelope)
        if envelope.work_id is not None and any(isinstance(effect, Open) for effect in effects):
            self._keep(envelope.channel, envelope.work_id, parent)
        if self._tracing.unsampled(parent) is not None:
            return
        attributes = _attributes(
            "process", envelope.channel, envelope.id, envelope.kind, envelope.sender, envelope.work_id
        )
        span = self._tracing.start(f"process {envelope.channel}", "consumer", parent, attributes, received_ms)
        span.end()

    def _of_opening(self, tx: Transaction, draft: Draft) -> Mapping[str, str]:
        if draft.work_id is None:
            return {}
        kept = self._openings.get((draft.channel, draft.work_id))
        if kept is not None:
            return kept
        known = lifecycle.find(tx, draft.work_id, draft.channel)
        if known is None or known.work.opening_id is None:
            return {}
        raw = raw_of(tx, draft.workspace_id, known.work.opening_id, known.work.initiator)
        ext = None if raw is None else decode_json(raw).get("ext")
        return self._keep(draft.channel, draft.work_id, carrier_in(ext) if isinstance(ext, dict) else {})

    def _keep(self, channel: str, work_id: str, carrier: Mapping[str, str]) -> Mapping[str, str]:
        if len(self._openings) >= OPENINGS:
            del self._openings[next(iter(self._openings))]
        self._openings[channel, work_id] = carrier
        return carrier


def trace_ids(envelope: Envelope | None) -> dict[str, str]:
    """The fields of a log line about `envelope` that join it to its trace; none if it carries no context."""
    return {} if envelope is None else ids_of(_carrier(envelope))


def _carrier(envelope: Envelope) -> dict[str, str]:
    return carrier_in(envelope.extensions()) if envelope.ext is not None else {}


def _attributes(
    operation: str, channel: str, message_id: str, kind: str, peer: str | None, work_id: str | None
) -> dict[str, Any]:
    return {
        "messaging.system": "nats",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": channel,
        "messaging.message.id": message_id,
        "messaging.message.conversation_id": work_id,
        "aghbus.kind": kind,
        "aghbus.peer": peer,
    }
