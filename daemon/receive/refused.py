"""Refused messages in quarantine and in the audit log: as many as their rate allows, the others only counted."""

from typing import Final

from aghbus.daemon.receive.received import ReceivedMessage
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.lanes import PARTS, Lane
from aghbus.daemon.state.rate_limits import spend_within
from aghbus.protocol.agh.effects import Quarantine
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.partial_parse import origin_of
from aghbus.protocol.base.rate_limit import SharedBucket
from aghbus.store.audit import events as audit
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import quarantine

QUARANTINE_PER_SECOND: Final = 50.0  # rows; more refused messages are only counted


class RefusedMessages:
    """Keeps refused messages, within their rate."""

    def __init__(self, context: DaemonContext) -> None:
        self._identity = context.identity
        self._settings = context.settings
        self._clock = context.clock
        self._counters = context.counters
        self._skipped = 0  # refused messages without a quarantine row since the last one with a row
        self._bucket = SharedBucket(4 * QUARANTINE_PER_SECOND, QUARANTINE_PER_SECOND)

    def may_keep(self, lane: Lane) -> bool:
        """Whether another refused message of a sender of this lane may be kept now."""
        return self._bucket.spend(1.0, self._clock.monotonic(), PARTS[lane])

    def may_keep_in(self, tx: Transaction, lane: Lane) -> bool:
        """As `may_keep`, in a job."""
        return spend_within(tx, self._bucket, self._clock.monotonic, lane)

    def skip(self) -> None:
        """Count a refused message that gets no quarantine row."""
        self._counters.add("quarantine.skipped")
        self._skipped += 1

    def keep(self, tx: Transaction, message: ReceivedMessage, effect: Quarantine) -> None:
        """Store a refused message with its audit row; without the content of a private message of other peers."""
        envelope, origin = message.envelope, message.origin
        if envelope is not None:
            origin = origin_of(envelope, self._identity.own_ids)
        assert origin is not None
        limits = self._settings.current.quarantine
        quarantine.add(
            tx,
            subject=message.subject,
            message_id=origin.message_id,
            sender=origin.sender,
            reason=effect.reason,
            detail=effect.detail,
            raw=b"" if origin.private else message.raw,
            received_ms=message.received_ms,
            max_rows=limits.max_rows,
            max_bytes=limits.max_bytes,
        )
        self._record_skipped(tx, message.received_ms)
        if origin.private:
            return  # the audit log does not name other peers' private messages (docs/audit.md, Rows)
        audit.note_refused(
            tx,
            message.received_ms,
            message.raw,
            effect.reason,
            envelope=envelope,
            msg_id=origin.message_id,
            sender=origin.sender,
        )

    def _record_skipped(self, tx: Transaction, at_ms: int) -> None:
        """One audit row for all skipped messages, so that a flood of them does not displace the other rows."""
        skipped, self._skipped = self._skipped, 0
        if skipped:
            tx.undo.append(lambda: self._unskip(skipped))
            audit.note_policy(
                tx, at_ms, "not_kept", f"{skipped} refused messages not recorded: quarantine rate exceeded"
            )

    def _unskip(self, skipped: int) -> None:
        self._skipped += skipped


def note_conflict(tx: Transaction, envelope: Envelope, at_ms: int) -> None:
    """An audit row: another daemon uses our peer id."""
    audit.note_policy(tx, at_ms, "peer_id_conflict", "another daemon sends under our peer id", envelope=envelope)
