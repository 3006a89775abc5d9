"""Which messages the inbox and the store have room for: a share for each lane, and one for each sender (docs/limits.md)."""

from functools import partial
from typing import Final

from aghbus.daemon.config.settings import Settings
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.lanes import PARTS, Lane, Lanes, allowance
from aghbus.daemon.state.limited_peers import LimitedPeers
from aghbus.protocol.agh.bodies import Trace
from aghbus.protocol.agh.effects import Advance, Effects, StoreEnvelope
from aghbus.protocol.agh.envelope import Envelope
from aghbus.store.engine.commit.state import NOTHING_KEPT
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import inbox

SENDER_PARTS: Final = 4
"""One sender fills at most one of so many equal parts of the inbox.

A peer that floods by mistake, or an agent that has stopped reading one conversation, leaves room for at least three others. A
smaller part would refuse the usual burst of one peer that hands out many works.
"""

_FOR_EVERYBODY: Final = PARTS["other"]

REACTION_PARTS: Final = 2
"""Questions and ends of our own works have room of their own beside the inbox: one of so many equal parts of its bounds.

One target fills at most one of SENDER_PARTS of it. An agent that never reads its inbox loses only these notices: they are in
`aghctl work list`, too.
"""

WORK_QUESTIONS: Final = 4
"""A question enters the inbox while fewer unread questions are of its work."""

OTHERS_WORKS: Final = 5_000
"""Works that others have opened, and that are open with us at once.

They are half of what the inbox holds by default. More than that are refused, because each is kept until it ends.
"""

OTHERS_WORKS_PARTS: Final = 8
"""Equal parts of `store.retention_size`, one for the messages of these works.

With what others may have in the inbox, a quarter of the store, contacts keep room for as much of their own.
"""

FULL: Final = "inbox"
SENDER: Final = "inbox.sender"
HELD: Final = "inbox.held"
WORKS: Final = "works"
"""Why a message is rejected; `inbox.` and a lane: the share of senders of that lane is used up; `inbox.store.` and a lane: what
the store has to keep, of these senders and of the lanes before theirs, is its part."""


def inbox_bytes(settings: Settings) -> int:
    """Bytes that may wait in the inbox: at most half of the store, so that history and open works have room, too."""
    return min(settings.inbox.max_bytes, settings.store.retention_size // 2)


class InboxAdmission:
    """Decides which messages enter the inbox."""

    def __init__(self, context: DaemonContext, lanes: Lanes, limited: LimitedPeers) -> None:
        self._settings = context.settings
        self._counters = context.counters
        self._clock = context.clock
        self._lanes = lanes
        self._limited = limited
        context.settings.on_change(self._configure)
        self._configure(context.settings.current)

    def _configure(self, settings: Settings) -> None:
        self._max_bytes = inbox_bytes(settings)

    def has_room(self, tx: Transaction, messages: int, size: int) -> bool:
        """Whether there is room for each of so many messages of `size` bytes together, from any sender: the whole inbox would then
        hold no more than one sender may, and the open works of others no more than they may."""
        settings, held = self._settings.current, tx.memory.inbox.messages
        fits = SENDER_PARTS * (held.count + messages) <= settings.inbox.capacity
        fits = fits and SENDER_PARTS * (held.size + size) <= self._max_bytes and tx.memory.kept == NOTHING_KEPT
        return fits and self._others_fit(tx, messages, size)

    def _others_fit(self, tx: Transaction, works: int, size: int) -> bool:
        memory, bytes_of_works = tx.memory, self._settings.current.store.retention_size // OTHERS_WORKS_PARTS
        return memory.others_works + works <= OTHERS_WORKS and memory.others_bytes + size <= bytes_of_works

    def why_busy(self, tx: Transaction, envelope: Envelope) -> str:
        """Why one of others may not open a work; empty if it may."""
        if self._others_fit(tx, 1, len(envelope.raw)):
            return ""
        tx.after_commit(partial(self._limited.note, WORKS, envelope.sender, "other", self._clock.monotonic()))
        return "the receiver has too many open works of peers that are no contacts"

    def rejection_in_work(self, tx: Transaction, envelope: Envelope, effects: Effects, advance: Advance) -> str:
        """Why a message of an open work may not enter the store: it is of one of others, who opened it, and adds to the works of
        others beyond their part; empty if it may."""
        if envelope.sender != advance.before.initiator or _ends_work(effects):
            return ""
        if self._others_fit(tx, 0, len(envelope.raw)) or self._lane(envelope, effects) != "other":
            return ""
        return WORKS

    def admits_reaction(self, tx: Transaction, envelope: Envelope) -> bool:
        """Whether a trace or receipt that our agent should react to enters the inbox; counted and reported if not. It is stored
        in any case."""
        settings, held, size, body = self._settings.current, tx.memory.inbox.reactions, len(envelope.raw), envelope.body
        capacity, bound = settings.inbox.capacity / REACTION_PARTS, self._max_bytes / REACTION_PARTS
        messages, used = held.senders.get(envelope.sender, (0, 0))
        asks = isinstance(body, Trace) and body.state == "needs_input"
        if (
            held.count < capacity
            and held.size + size <= bound
            and not (messages and _fills_part(messages, used + size, capacity, bound))
            and not (asks and held.works.get(envelope.work_id or "", 0) >= WORK_QUESTIONS)
        ):
            return True
        tx.after_commit(partial(self._leave_out, envelope.sender))
        return False

    def _leave_out(self, sender: str) -> None:
        self._counters.add("inbox.reactions_left_out")
        self._limited.note("reactions", sender, self._lanes.of(sender, "verified"), self._clock.monotonic())

    def rejection_of_held(self, tx: Transaction) -> str:
        """Why an opening that is held since a restore may not enter the store; empty, and counted, if it may."""
        is_full = self._store_is_full(tx, "contact")
        if is_full or SENDER_PARTS * inbox.count_held(tx.db) >= self._settings.current.inbox.capacity:
            return HELD
        tx.after_commit(partial(self._counters.add, "inbox.held"))
        return ""

    def rejection(self, tx: Transaction, envelope: Envelope, effects: Effects) -> str:
        """Why the message of a conversation may not enter the inbox, empty if it may.

        A store that is larger than its bound, with more to be kept than the lane may use takes none.
        """
        settings, held, size = self._settings.current, tx.memory.inbox.messages, len(envelope.raw)
        capacity, bound = settings.inbox.capacity, self._max_bytes
        if held.count >= capacity or held.size + size > bound:
            return FULL
        lane = self._lane(envelope, effects)
        if self._store_is_full(tx, lane):
            return f"inbox.store.{lane}"
        if not held.count:
            return ""  # also where the part of others is less than one message
        messages, used = held.senders.get(envelope.sender, (0, 0))
        if messages and _fills_part(messages, used + size, capacity, bound):
            return SENDER
        if held.count < int(capacity * _FOR_EVERYBODY) and held.size + size <= int(bound * _FOR_EVERYBODY):
            return ""
        if held.count >= allowance(capacity, lane) or held.size + size > allowance(bound, lane):
            return f"inbox.{lane}"
        return ""

    def _lane(self, envelope: Envelope, effects: Effects) -> Lane:
        return self._lanes.of(envelope.sender, next(one.trust for one in effects if isinstance(one, StoreEnvelope)))

    def _store_is_full(self, tx: Transaction, lane: Lane) -> bool:
        """Whether the store has no room for what it would have to keep of this lane: contacts do not pay for others."""
        kept = tx.memory.kept
        used = kept.contacts + (kept.others if lane == "other" else 0)
        return used > allowance(self._settings.current.store.retention_size // 2, lane)


def _fills_part(messages: int, size: int, capacity: float, bound: float) -> bool:
    """Whether one sender has its part of `capacity` with so many messages, or exceeds that of `bound` with so many bytes."""
    return SENDER_PARTS * messages >= capacity or SENDER_PARTS * size > bound


def _ends_work(effects: Effects) -> bool:
    return any(isinstance(effect, Advance) and effect.after.is_terminal for effect in effects)
