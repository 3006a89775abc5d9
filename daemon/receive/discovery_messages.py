"""Received greets and whois: answered at once, and persisted asynchronously (docs/adr/0004)."""

from dataclasses import dataclass
from functools import partial

from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.discovery.discovery import Discovery
from aghbus.daemon.discovery.presence_writer import PresenceWriteBehind
from aghbus.daemon.receive.decider import Decider, Receivers
from aghbus.daemon.receive.received import ReceivedMessage, result_of
from aghbus.daemon.receive.refused import RefusedMessages, note_conflict
from aghbus.daemon.receive.rejections import Rejections
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.agh.effects import AnswerWhois, Conflict, Discovered, Ignore, Quarantine, RecordId
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.receive import StoredState, decide
from aghbus.store.engine.database import Store


@dataclass(frozen=True, slots=True, eq=False)
class DiscoveryMessages:
    """Decides and handles the messages of discovery, without a transaction."""

    store: Store
    limits: RateLimits
    receivers: Receivers
    decider: Decider
    refused: RefusedMessages
    rejections: Rejections
    discovery: Discovery
    write_behind: PresenceWriteBehind
    trust: LivePolicy
    counters: Counters

    def handle(self, received: ReceivedMessage, envelope: Envelope) -> None:
        """Handle a valid greet or whois."""
        memory = self.store.memory
        key = memory.log.ids.dedup_key(envelope.workspace_id, envelope.sender, envelope.id)
        state = StoredState(duplicate=key in self.write_behind or key in memory.dedup.keys)
        effects = decide(envelope, state, self.receivers.of(envelope.sender, self.limits.verify))
        standing = self.decider.standing(envelope, effects)
        if type(effects[0]) is RecordId:
            remaining = effects[0].until - received.received_ms // 1000
            if not self.decider.admits_id(memory.dedup, remaining, standing, self.write_behind.pending):
                self.rejections.reject("memory", received)
                return
        self.counters.received[envelope.kind, result_of(effects)] += 1
        for effect in reversed(effects):
            match effect:  # answers first, then the persisted effects
                case RecordId(until=until):
                    self.write_behind.remember(key, until)
                    self.trust.observe_discovery(envelope)
                case Discovered() | AnswerWhois():
                    self.discovery.carry_out(effect, envelope, standing)
                case Conflict():
                    self.discovery.conflict(envelope)
                    if self.refused.may_keep(standing):
                        at_ms = received.received_ms
                        self.store.write_deferred(partial(note_conflict, envelope=envelope, at_ms=at_ms))
                case Quarantine(reason=reason):
                    self.counters.add("refused")
                    self.counters.add(f"refused.{reason}")
                    if self.refused.may_keep(standing):
                        self.store.write_deferred(partial(self.refused.keep, message=received, effect=effect))
                case Ignore(why=why):
                    self.counters.add(f"ignored.{why}")
                case _:
                    raise AssertionError(f"discovery has no such effect: {effect!r}")
        if received.settlement is not None:
            received.settlement.ack()
