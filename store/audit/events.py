"""Events of the audit log (docs/audit.md): each function adds one entry to the open transaction, or none while the log
is off.

An entry never holds the text of a message.
"""

from collections.abc import Callable
from hashlib import sha256
from operator import attrgetter
from typing import Final

from aghbus.protocol.api.inbox import InboxItem
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.text import shorten
from aghbus.store.engine.audit_chain import AuditEntry, AuditEvent
from aghbus.store.engine.sql import encodable
from aghbus.store.engine.transaction import Transaction

PRUNED: Final = "pruned"
"""Outcome of the entry by which retention says through which row the log was shortened."""
ROWS_MISSING: Final = "rows_missing"
"""Outcome of the entry by which a start says that the log was not the one that the last run left."""

_TEXT_CHARS: Final = 512  # of a text that could be read of a refused envelope, and of a reason
_Headers = tuple[str, str, str | None, str, str, str | None]
# Of an envelope, or of a message as the API shows it.
_headers: Final[Callable[[object], _Headers]] = attrgetter("id", "sender", "to", "channel", "kind", "work_id")


def note_start(tx: Transaction, at_ms: int, how: str) -> None:
    """The daemon has started; `how` names its trust settings. A log that is not as the last run left it gets an entry
    of its own."""
    note_policy(tx, at_ms, "started", how)
    gap = tx.memory.audit.gap
    if gap is not None:
        note_policy(tx, at_ms, ROWS_MISSING, gap)


def note_envelope(
    tx: Transaction,
    at_ms: int,
    event: AuditEvent,
    envelope: Envelope,
    outcome: str,
    reason: str | None,
    trust: str | None,
) -> None:
    """An envelope was stored for sending, was received, or is the subject of a decision."""
    log = tx.memory.audit
    if log.enabled:
        log.pending.append(AuditEntry(at_ms, event, outcome, reason, *_headers(envelope), trust, envelope.digest))


def note_refused(
    tx: Transaction, at_ms: int, raw: bytes, reason: str, *, envelope: Envelope | None, msg_id: str, sender: str
) -> None:
    """Bytes were refused for `reason`, a reason code of the wire; `msg_id` and `sender` as far as they could be read,
    else empty.

    They are not verified: the sender of a refused envelope is a claim.
    """
    if envelope is not None:
        note_envelope(tx, at_ms, "reject", envelope, "refused", reason, None)
    elif tx.memory.audit.enabled:
        claimed_id, claimed_sender = (encodable(text, _TEXT_CHARS) or None for text in (msg_id, sender))
        digest = sha256(raw).hexdigest()
        entry = AuditEntry(at_ms, "reject", "refused", reason, claimed_id, claimed_sender, digest=digest)
        tx.memory.audit.pending.append(entry)


def note_delivery(tx: Transaction, at_ms: int, item: InboxItem, outcome: str) -> None:
    """The state of an inbox message has changed: `leased`, `acked`, `returned`, `dead` or `requeued`."""
    log = tx.memory.audit
    if log.enabled:
        message = item.message
        digest = None if message.damaged else sha256(message.envelope).hexdigest()
        log.pending.append(AuditEntry(at_ms, "deliver", outcome, None, *_headers(message), message.trust, digest))


def note_outgoing(tx: Transaction, at_ms: int, seq: int, outcome: str, reason: str) -> None:
    """Our envelope `seq`, kept before, is sent `again`, or given up as `expired` or `dead`, for `reason`."""
    log = tx.memory.audit
    if log.enabled:
        sql = "SELECT msg_id, sender, recipient, channel, kind, work_id, trust, raw FROM envelopes WHERE seq = ?"
        row = tx.db.execute(sql, (seq,)).fetchone()
        headers: _Headers = row[:6]
        trust, raw = row[6:]
        reason, digest = shorten(reason, _TEXT_CHARS), sha256(raw).hexdigest()
        log.pending.append(AuditEntry(at_ms, "send", outcome, reason, *headers, trust, digest))


def note_policy(
    tx: Transaction, at_ms: int, outcome: str, reason: str | None = None, *, envelope: Envelope | None = None
) -> None:
    """A decision of this daemon, or of its operator; `envelope` is the one that it is about."""
    log = tx.memory.audit
    if not log.enabled:
        return
    reason = None if reason is None else shorten(reason, _TEXT_CHARS)
    if envelope is not None:
        note_envelope(tx, at_ms, "policy", envelope, outcome, reason, None)
    else:
        log.pending.append(AuditEntry(at_ms, "policy", outcome, reason))
