"""Lanes: how much of each resource the messages of a peer may use, by how this side admitted the peer (docs/limits.md).

Names and keys are free, so neither a bound by name nor a valid signature bounds what all of them do together. A peer is a contact
when this side admitted it: a rule of the operator names it, or our agent has addressed it. Everybody else belongs to the others,
with or without a signature, for however long. Each resource refuses others when it is half used, contacts without a key when it is
used to three quarters, and contacts with a key only when it is full: what others leave free is always there for contacts.
"""

from collections.abc import Mapping
from typing import Final

from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.trust.trust import Trust
from aghbus.protocol.api import inbox
from aghbus.store.engine.commit.transaction import Transaction

Lane = inbox.Lane

PARTS: Final[Mapping[Lane, float]] = {"contact": 1.0, "plain": 0.75, "other": 0.5}
"""The part of a resource that may be in use when a message of this lane uses more of it."""

LANE_NAMES: Final[Mapping[Lane, str]] = {
    "contact": "contacts",
    "plain": "contacts without a key",
    "other": "others, in the lane that they share",
}
"""What an operator reads."""

_ADDRESSING: Final = frozenset({"say", "capability"})
"""Kinds by which our agent addresses a peer. Receipts and traces only answer, whatever the peer has sent."""


def allowance(bound: int, lane: Lane) -> int:
    """How much of `bound` may be in use when a message of this lane uses more of it."""
    return int(bound * PARTS[lane])


class Lanes:
    """The lane of each message, by the name of its sender and the result of verification.

    A contact with a key has its lane only by messages whose signature was verified. A contact without a key has a lane of its
    own, since anybody can use its name.
    """

    def __init__(self, settings: LiveSettings, trust: LivePolicy, *, embedded: bool) -> None:
        """`embedded`: the broker is the embedded one, which only processes of the user can join: every peer is a contact."""
        self._settings = settings
        self._trust = trust
        self._embedded = embedded

    def of(self, sender: str, trust: Trust | None) -> Lane:
        """The lane of an envelope that was verified with the result `trust`; None if its signature is wrong, or before
        verification."""
        if not self.is_contact(sender):
            return "other"
        if "@" not in sender:
            return "plain"
        return "contact" if trust == "verified" else "other"

    def is_contact(self, sender: str) -> bool:
        """Whether this side admitted `sender`. It may be forged as long as its signature was not verified."""
        if self._embedded or self._settings.current.trust.admit == "all":
            return True
        return self._trust.admits(sender)

    def address(self, tx: Transaction, envelope: Envelope, now_ms: int) -> None:
        """Our agent sends `envelope`: by a message of its own it admits the receiver."""
        peer = envelope.to
        if envelope.kind in _ADDRESSING and peer is not None and not self._trust.admits(peer):
            tx.memory.trust.put_addressed(tx, peer, now_ms)
