"""Acting on the outcomes of a batch once its transaction is committed."""

from dataclasses import dataclass

from aghbus.daemon.base.failpoints import ARMED, failpoint
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.discovery.discovery import Discovery
from aghbus.daemon.receive.acknowledger import Acknowledger
from aghbus.daemon.receive.received import EARLY, Outcome, result_of
from aghbus.daemon.receive.rejections import NAK_DELAY, Rejections
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.state.spans import EnvelopeSpans
from aghbus.protocol.agh.effects import Ignore, PeerIdConflict, Quarantine, Queue


@dataclass(frozen=True, slots=True, eq=False)
class OutcomeHandler:
    """Publishes, acknowledges, counts and traces what was committed. With `spans`, what is stored is traced."""

    publisher: Publisher
    acknowledger: Acknowledger
    discovery: Discovery
    rejections: Rejections
    notifier: Notifier
    counters: Counters
    spans: EnvelopeSpans | None = None

    def handle(self, outcomes: list[Outcome]) -> None:
        """Act on the outcomes of a batch, in order."""
        if ARMED:
            failpoint("receive.committed")
        last_seq, counted = 0, self.counters.received
        for outcome in outcomes:
            applied, settlement = outcome.applied, outcome.message.settlement
            if applied is None:
                self._act_on_rejection(outcome)
                continue
            if (envelope := outcome.message.envelope) is not None:
                result = "accepted" if outcome.stored_only else result_of(outcome.effects)
                counted[envelope.kind, result] += 1
                if self.spans is not None and applied.seq is not None:
                    self.spans.processed(envelope, outcome.message.received_ms)
            if not outcome.stored_only:
                self._report(outcome)
            if outcome.receipts:
                self.acknowledger.publish_receipts(outcome.receipts)
            if applied.outgoing:
                self.publisher.enqueue(applied.outgoing)
                last_seq = applied.last_seq
            elif applied.seq is not None:
                last_seq = applied.seq  # they ascend
            if settlement is not None:
                settlement.ack()
        self.acknowledger.acknowledge(outcomes)
        if ARMED:
            failpoint("receive.acted")
        self.notifier.notify(last_seq)

    def _act_on_rejection(self, outcome: Outcome) -> None:
        if outcome.rejected is not EARLY:
            self.rejections.reject(outcome.rejected, outcome.message)
            return
        self.counters.add("receive.early")
        if (envelope := outcome.message.envelope) is not None:
            self.counters.received[envelope.kind, "early"] += 1
        if outcome.message.settlement is not None:
            outcome.message.settlement.nak(NAK_DELAY)

    def _report(self, outcome: Outcome) -> None:
        """Count and report the effects that the store does not apply."""
        for effect in outcome.effects:
            match effect:
                case Ignore(why=why):
                    self.counters.add(f"ignored.{why}")
                case Quarantine(reason=reason) if outcome.message.envelope is not None:
                    self.counters.add("refused")
                    self.counters.add(f"refused.{reason}")
                case PeerIdConflict(envelope=envelope):
                    self.discovery.conflict(envelope)
                case Queue(envelope=answer):
                    self.counters.add(f"sent.{answer.kind}")
                case _:
                    pass
