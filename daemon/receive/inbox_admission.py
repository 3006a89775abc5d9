"""Which messages the inbox has room for: a share of it for each lane, and one for each sender (docs/limits.md)."""

from functools import partial
from typing import Final

from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.state.lanes import PARTS, Lanes, allowance
from aghbus.protocol.agh.effects import Advance, Effects, StoreEnvelope
from aghbus.protocol.agh.envelope import Envelope
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import inbox

SENDER_PARTS: Final = 4
"""One sender fills at most one of so many equal parts of the inbox.

A peer that floods by mistake, or an agent that has stopped reading one conversation, leaves room for at least three others. A
smaller part would refuse the usual burst of one peer that hands out many works.
"""

_FOR_EVERYBODY: Final = PARTS["other"]

REACTION_PARTS: Final = 10
"""Questions and ends of our own works enter the inbox while less than one of so many parts of it is used.

An agent that never reads its inbox loses only these notices: they are in `aghctl work list`, too.
"""

FULL: Final = "inbox"
STORE: Final = "inbox.store"
SENDER: Final = "inbox.sender"
HELD: Final = "inbox.held"
"""Why a message is rejected; `inbox.` and a lane: the share of senders of that lane is used up."""


def inbox_bytes(settings: Settings) -> int:
    """Bytes that may wait in the inbox: at most half of the store, so that history and open works have room, too."""
    return min(settings.inbox.max_bytes, settings.store.retention_size // 2)


class InboxAdmission:
    """Decides which messages enter the inbox."""

    def __init__(self, settings: LiveSettings, lanes: Lanes, counters: Counters) -> None:
        self._settings = settings
        self._lanes = lanes
        self._counters = counters

    def has_room(self, tx: Transaction, messages: int, size: int) -> bool:
        """Whether `rejection` would be empty for each of so many messages of `size` bytes together, from any sender: the whole
        inbox would then hold no more than one sender may."""
        settings, held = self._settings.current, tx.memory.inbox
        fits = SENDER_PARTS * (held.waiting + messages) <= settings.inbox.capacity
        return fits and SENDER_PARTS * (held.size + size) <= inbox_bytes(settings) and not tx.memory.excess

    def admits_reaction(self, tx: Transaction, envelope: Envelope) -> bool:
        """Whether a trace or receipt that our agent should react to enters the inbox; counted if not. It is stored in any case."""
        settings, held = self._settings.current, tx.memory.inbox
        used = held.size + len(envelope.raw)
        within = REACTION_PARTS * held.waiting < settings.inbox.capacity
        if within and REACTION_PARTS * used <= inbox_bytes(settings) and not tx.memory.excess:
            return True
        tx.after_commit(partial(self._counters.add, "inbox.reactions_left_out"))
        return False

    def rejection_of_held(self, tx: Transaction) -> str:
        """Why an opening that is held since a restore may not enter the store; empty, and counted, if it may."""
        if tx.memory.excess or SENDER_PARTS * inbox.count_held(tx.db) >= self._settings.current.inbox.capacity:
            return HELD
        tx.after_commit(partial(self._counters.add, "inbox.held"))
        return ""

    def rejection(self, tx: Transaction, envelope: Envelope, effects: Effects) -> str:
        """Why the message may not enter the inbox, empty if it may.

        A store that is larger than its bound takes only messages by which a work ends: that makes room.
        """
        settings, held, size = self._settings.current, tx.memory.inbox, len(envelope.raw)
        capacity, bound = settings.inbox.capacity, inbox_bytes(settings)
        if held.waiting >= capacity or held.size + size > bound:
            return FULL
        if tx.memory.excess and not _ends_work(effects):
            return STORE
        if not held.waiting:
            return ""  # also where the part of others is less than one message
        messages, used = held.senders.get(envelope.sender, (0, 0))
        if messages and (SENDER_PARTS * messages >= capacity or SENDER_PARTS * (used + size) > bound):
            return SENDER
        if held.waiting < int(capacity * _FOR_EVERYBODY) and held.size + size <= int(bound * _FOR_EVERYBODY):
            return ""
        trust = next(effect.trust for effect in effects if isinstance(effect, StoreEnvelope))
        lane = self._lanes.of(envelope.sender, trust)
        if held.waiting >= allowance(capacity, lane) or held.size + size > allowance(bound, lane):
            return f"inbox.{lane}"
        return ""


def _ends_work(effects: Effects) -> bool:
    return any(isinstance(effect, Advance) and effect.after.is_terminal for effect in effects)
