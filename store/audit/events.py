"""Events in the ledger that are not the storing of an envelope (docs/audit.md): each function adds one event to the entry of the
open transaction.

No event holds the text of a message. An event about a stored envelope names its sequence; one about an envelope that is
not stored, its headers.
"""

from hashlib import sha256
from typing import Final, Literal

import msgspec

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.base.text import shorten
from aghbus.store.engine.commit.ledger import COMMITS_MISSING
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.sql import encodable

EventName = Literal["send", "reject", "deliver", "policy"]
PRUNED: Final = "pruned"
"""Outcome of the event that names the last entry that retention removed."""
REMOVED: Final = "removed"
"""Outcome of the event that names the sequences of envelopes that retention removed."""

_TEXT_CHARS: Final = 512  # of a text that could be read of a refused envelope, and of a reason


class AuditEvent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An event as it is read. `seq` is that of a stored envelope; the fields after it are those of an envelope that is not
    stored, `digest` the SHA-256 of its bytes in hexadecimal. None: does not apply."""

    at_ms: int
    event: EventName
    outcome: str
    reason: str | None = None
    seq: int | None = None
    msg_id: str | None = None
    sender: str | None = None
    recipient: str | None = None
    channel: str | None = None
    kind: str | None = None
    work_id: str | None = None
    digest: str | None = None


def note_start(tx: Transaction, at_ms: int, how: str) -> None:
    """The daemon has started; `how` names its trust settings. A ledger that is not as the last run left it gets an event of
    its own."""
    note_policy(tx, at_ms, "started", how)
    if tx.memory.ledger.gap is not None:
        note_policy(tx, at_ms, COMMITS_MISSING, tx.memory.ledger.gap)


def note_refused(
    tx: Transaction, at_ms: int, raw: bytes, reason: str, *, envelope: Envelope | None, msg_id: str, sender: str
) -> None:
    """Bytes were refused for `reason`, a reason code of the wire; `msg_id` and `sender` as far as they could be read,
    else empty.

    They are not verified: the sender of a refused envelope is a claim.
    """
    if envelope is not None:
        _note_unstored(tx, at_ms, "reject", "refused", reason, envelope)
    else:
        claimed_id, claimed_sender = (encodable(text, _TEXT_CHARS) or None for text in (msg_id, sender))
        event = (at_ms, "reject", "refused", reason, None, claimed_id, claimed_sender, None, None, None, None)
        tx.memory.ledger.note(tx, (*event, sha256(raw).hexdigest()))


def note_delivery(tx: Transaction, at_ms: int, seq: int, outcome: str) -> None:
    """The state of an inbox message has changed: `leased`, `acked`, `returned`, `dead`, `purged`,
    `requeued` or `held`."""
    tx.memory.ledger.note(tx, (at_ms, "deliver", outcome, None, seq))


def note_outgoing(tx: Transaction, at_ms: int, seq: int, outcome: str, reason: str) -> None:
    """Our envelope `seq`, kept before, is sent `again`, or given up as `expired` or `dead`, for `reason`."""
    tx.memory.ledger.note(tx, (at_ms, "send", outcome, shorten(reason, _TEXT_CHARS), seq))


def note_policy(
    tx: Transaction, at_ms: int, outcome: str, reason: str | None = None, *, envelope: Envelope | None = None
) -> None:
    """A decision of this daemon, or of its operator; `envelope` is the one that it is about."""
    reason = None if reason is None else shorten(reason, _TEXT_CHARS)
    if envelope is not None:
        _note_unstored(tx, at_ms, "policy", outcome, reason, envelope)
    else:
        tx.memory.ledger.note(tx, (at_ms, "policy", outcome, reason))


def _note_unstored(
    tx: Transaction, at_ms: int, name: EventName, outcome: str, reason: str | None, envelope: Envelope
) -> None:
    event = (at_ms, name, outcome, reason, None, envelope.id, envelope.sender, envelope.to, envelope.channel)
    tx.memory.ledger.note(tx, (*event, envelope.kind, envelope.work_id, envelope.digest))
