"""Received greets and whois: answered at once, and persisted asynchronously (docs/adr/0004)."""

from functools import partial

from aghbus.daemon.discovery.discovery import Discovery
from aghbus.daemon.discovery.presence_writer import PresenceWriteBehind
from aghbus.daemon.receive.decider import Decider, Receivers
from aghbus.daemon.receive.received import ReceivedMessage, result_of
from aghbus.daemon.receive.refused import RefusedMessages, note_conflict
from aghbus.daemon.receive.rejections import Rejections
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.agh.effects import AnswerWhois, Discovered, Ignore, PeerIdConflict, Quarantine, RecordId
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.receive import StoredState, decide
from aghbus.store.engine.database import Store


class DiscoveryMessages:
    """Decides and handles the messages of discovery, without a transaction."""

    def __init__(
        self,
        context: DaemonContext,
        store: Store,
        limits: RateLimits,
        receivers: Receivers,
        decider: Decider,
        refused: RefusedMessages,
        rejections: Rejections,
        discovery: Discovery,
        write_behind: PresenceWriteBehind,
        trust: LivePolicy,
    ) -> None:
        self._store = store
        self._limits = limits
        self._receivers = receivers
        self._decider = decider
        self._refused = refused
        self._rejections = rejections
        self._discovery = discovery
        self._write_behind = write_behind
        self._trust = trust
        self._counters = context.counters

    def handle(self, received: ReceivedMessage, envelope: Envelope) -> None:
        """Handle a valid greet or whois."""
        memory = self._store.memory
        key = memory.log.ids.dedup_key(envelope.workspace_id, envelope.sender, envelope.id)
        state = StoredState(duplicate=key in self._write_behind or key in memory.dedup.keys)
        effects = decide(envelope, state, self._receivers.of(envelope.sender, self._limits.verify))
        lane = self._decider.lane(envelope, effects)
        if type(effects[0]) is RecordId:
            remaining = effects[0].until - received.received_ms // 1000
            if not self._decider.admits_id(memory.dedup, remaining, lane, self._write_behind.pending):
                self._rejections.reject("memory", received, lane)
                return
        self._counters.received[envelope.kind, result_of(effects)] += 1
        for effect in reversed(effects):
            match effect:  # answers first, then the persisted effects
                case RecordId(until=until):
                    self._write_behind.remember(key, until)
                    self._trust.observe_discovery(envelope)
                case Discovered() | AnswerWhois():
                    self._discovery.carry_out(effect, envelope, lane)
                case PeerIdConflict():
                    self._discovery.conflict(envelope)
                    if self._refused.may_keep(lane):
                        at_ms = received.received_ms
                        self._store.write_deferred(partial(note_conflict, envelope=envelope, at_ms=at_ms))
                case Quarantine(reason=reason):
                    self._counters.add("refused")
                    self._counters.add(f"refused.{reason}")
                    if self._refused.may_keep(lane):
                        self._store.write_deferred(partial(self._refused.keep, message=received, effect=effect))
                case Ignore(why=why):
                    self._counters.add(f"ignored.{why}")
                case _:
                    raise AssertionError(f"discovery has no such effect: {effect!r}")
        if received.settlement is not None:
            received.settlement.ack()
