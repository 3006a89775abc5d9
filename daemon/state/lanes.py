"""Lanes: how much of each resource the messages of a peer may use, by how this side admitted the peer (docs/limits.md).

Names and keys are free, so neither a bound by name nor a valid signature bounds what all of them do together. A peer is a contact
when this side admitted it: a rule of the operator names it, or our agent has addressed it. Everybody else belongs to the others,
with or without a signature, for however long. Each resource refuses others when it is half used, contacts without a key when it is
used to three quarters, and contacts with a key only when it is full: what others leave free is always there for contacts.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.trust.policy import identity_of
from aghbus.protocol.agh.trust.trust import Trust
from aghbus.protocol.api import inbox
from aghbus.store.audit import events as audit
from aghbus.store.engine.commit.transaction import Transaction

Lane = inbox.Lane

PARTS: Final[Mapping[Lane, float]] = {"contact": 1.0, "plain": 0.75, "other": 0.5}
"""The part of a resource that may be in use when a message of this lane uses more of it."""


class Resource(NamedTuple):
    """What the messages of peers can use up: `bound` names the settings and constants (docs/limits.md), `holds` the tables of the
    store, and the attributes in memory, that they fill."""

    bound: str
    holds: frozenset[str]
    parts: Mapping[Lane, float] = PARTS


def _resource(bound: str, holds: str = "", parts: Mapping[Lane, float] = PARTS) -> Resource:
    return Resource(bound, frozenset(holds.split()), parts)


_CONTACTS: Final[Mapping[Lane, float]] = {"contact": 1.0, "plain": 1.0, "other": 0.0}
"""Of a resource that is not for others, unless the user says so."""

_EVERYBODY: Final[Mapping[Lane, float]] = {"contact": 1.0, "plain": 1.0, "other": 1.0}
"""Of a resource that is bounded by name, or that the receiver's own messages bound."""

RESOURCES: Final[Mapping[str, Resource]] = {
    "processing": _resource("limits.processor_percent"),
    "queue": _resource(
        "receive.queue QUEUE_BYTES",
        "ReceiveQueue._first ReceiveQueue._lanes ReceiveQueue._shares Proofs.rejected Proofs._errors"
        " SignaturePool._found SignaturePool._begun",
    ),
    "remembered ids": _resource(
        "receive.remembered",
        "remembered_ids DedupWindow.keys DedupWindow._minutes DedupWindow.pending MessageIds._senders",
    ),
    "inbox": _resource(
        "inbox.capacity inbox.max_bytes",
        "inbox Unread.senders Unread.works InboxMemory.changed_works InboxMemory._untouched InboxMemory._out_of_order"
        " InboxMemory._waiting InboxMemory._taken InboxMemory.held_back Deadlines._dead",
    ),
    "early messages": _resource("EARLY_AT_ONCE EARLY_SECONDS", parts=_CONTACTS),
    "wakes of agent hosts": _resource("WAKES WINDOW", "LoopGuard._counts", _CONTACTS),
    "reactions": _resource("REACTION_PARTS WORK_QUESTIONS"),
    "open works": _resource("OTHERS_WORKS OTHERS_WORKS_PARTS OTHERS_ACCEPT_WITHIN", "works rooms InMemoryState.works"),
    "history": _resource(
        "store.retention_size",
        "log flows verdicts ledger _Dictionary.ids _Dictionary._values Flows._new_containers Tail.rows Ledger.records Ledger.events"
        " EventBuffer.pending EventBuffer._rows",
    ),
    "foreign messages": _resource("store.retention_size", "bridge_messages bridge_log bridge_log_sizes follow_ups"),
    "quarantine": _resource("QUARANTINE_PER_SECOND quarantine.max_rows quarantine.max_bytes", "quarantine"),
    "presence": _resource(
        "MAX_PEERS MAX_BYTES",
        "PresenceTable._versions PresenceTable._loads PresenceTable._runs PresenceTable._left "
        "peers PresenceTable._peers PresenceTable._others PresenceTable._sizes PresenceTable._stored PresenceTable._dropped"
        " InMemoryState.acknowledging Greeter._waiting Greeter._last Greeter._heard RestoredPeers._asking"
        " RestoredPeers._asked RestoredPeers._noted",
    ),
    "receipts": _resource("limits.all_receipts_per_minute", "outbox RateLimits._denials RateLimits._repeats"),
    "answers": _resource("limits.answer_bytes_per_minute", "BackgroundTasks._tasks"),
    "stream": _resource("jetstream.max_in_flight", "PendingAcks.acked PendingAcks._before", _EVERYBODY),
    "acknowledgements": _resource("INBOXES AT_FIRST", "AckReceiver._answers Unconfirmed._answering", _EVERYBODY),
    "answers to our whois": _resource("MAX_PEERS", "PendingWhois.found WhoisQuestions._limited", _EVERYBODY),
    "pins of first use": _resource(
        "MAX_RULES",
        "trust_rules TrustRules.pins TrustRules._rules LivePolicy._paused LivePolicy._keys Tags._keys Tags._senders",
        _EVERYBODY,
    ),
    "contexts of traces": _resource("OPENINGS", "EnvelopeSpans._openings", _EVERYBODY),
    "chains": _resource("max_steps", "chain_runs chain_steps", _EVERYBODY),
    "reports": _resource(
        "MAX_NAMES MAX_HELD",
        "LimitedPeers._limits _Limit.names _Limit.counts EventLimiter._windows Counters._problems HeldBack._messages",
        _EVERYBODY,
    ),
}
"""Every resource. A table, queue or cache that peers can fill and that is not listed here fails a test."""

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
            return identity_of(sender) not in self._trust.now.deny
        return self._trust.admits(sender)

    def address(self, tx: Transaction, envelope: Envelope, now_ms: int) -> None:
        """Our agent sends `envelope`: by a message of its own it admits the receiver."""
        peer = envelope.to
        if envelope.kind not in _ADDRESSING or peer is None or peer in tx.memory.trust.admitted:
            return
        if not self._trust.admits(peer):
            dropped = tx.memory.trust.put_addressed(tx, peer, now_ms)
            audit.note_policy(tx, now_ms, "trust.addressed", f"admit {peer}")
            if dropped is not None:
                audit.note_policy(tx, now_ms, "trust.unused", f"admit {dropped.who}")
