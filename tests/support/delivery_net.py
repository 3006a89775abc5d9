"""Two peers of the model of delivery: their outboxes, and a wire that loses, repeats and reorders."""

from collections import Counter
from typing import Final, Literal, NamedTuple

import msgspec

from aghbus.protocol.agh.bodies import Receipt
from aghbus.protocol.agh.delivery.acks import Ack
from aghbus.protocol.agh.delivery.order import Predecessor, predecessor_of, settled_header
from aghbus.protocol.agh.envelope import Envelope, parse
from aghbus.protocol.agh.identifiers import direct_id
from aghbus.protocol.agh.lifecycle import WorkView
from tests.support.peers import CHANNEL, THREAD, WORKSPACE, Bus

NAMES: Final = ("ops", "worker")
ROOM: Final = direct_id(WORKSPACE, CHANNEL, *NAMES)
CAPACITY: Final = 3  # of each inbox

State = Literal["queued", "published", "receipted", "refused"]


def differ(ours: WorkView, theirs: WorkView) -> bool:
    """Whether the states differ, but where a question and a word that was sent before it have crossed."""
    return ours.state != theirs.state and {ours.state, theirs.state} != {"working", "needs_input"}


class Row(msgspec.Struct):
    """One row of an outbox: `number` is its place in the order of the store."""

    number: int
    envelope: Envelope
    state: State = "queued"
    reason: str | None = None
    attempts: int = 0

    @property
    def is_outstanding(self) -> bool:
        return self.state in ("queued", "published")


class Flying(NamedTuple):
    """Something on the wire: an envelope with its header, or an acknowledgement (no bytes)."""

    work_id: str | None
    raw: bytes | None
    settled: str = ""
    ack: Ack | None = None


def _is_unstored(envelope: Envelope) -> bool:
    """Whether this is the answer to a copy, which is published once."""
    return isinstance(envelope.body, Receipt) and envelope.body.status == "duplicate"


class Net(Bus):
    """A bus on which publishing means: a row in the outbox of the sender. `wires` are what is on its way to each side.

    With `flow` envelopes go through a stream, which delivers what has not left it again, in any order; publishes to it and
    acknowledgements can be lost, what it has cannot. What is not taken leaves it, too.
    """

    def __init__(self, *, ordered: bool = True, flow: bool = False) -> None:
        super().__init__()
        self.ordered = ordered
        self.flow = flow
        self.outbox: dict[str, dict[str, Row]] = {name: {} for name in NAMES}
        self.wires: dict[str, list[Flying]] = {name: [] for name in NAMES}
        self.stored: dict[str, list[Flying]] = {name: [] for name in NAMES}  # in the flow, unacknowledged
        self.handed: dict[str, list[Envelope]] = {name: [] for name in NAMES}  # to the agent
        for name in NAMES:
            self.join(name).capacity = CAPACITY

    def publish(self, sender: str, to: str | None, raw: bytes) -> None:
        envelope = parse(raw, self.now)
        if _is_unstored(envelope):
            self.wires[self.other(sender)].append(Flying(envelope.work_id, raw))
            return
        rows = self.outbox[sender]
        row = rows.setdefault(envelope.id, Row(len(rows), envelope))
        row.state = "queued"

    def predecessor(self, sender: str, to: str, container: str) -> Predecessor | None:
        before = [row.envelope for row in self.unanswered(sender) if row.envelope.container == container]
        if not before or not self.ordered:
            return None
        return Predecessor(before[-1].id, max(envelope.fresh_until for envelope in before))

    def other(self, name: str) -> str:
        return NAMES[1 - NAMES.index(name)]

    def unanswered(self, name: str) -> list[Row]:
        return sorted((row for row in self.outbox[name].values() if row.is_outstanding), key=lambda row: row.number)

    def held(self, name: str, row: Row) -> bool:
        """Without order: whether our opening or our end of the same work is before it, and unanswered."""
        work = self.work(name, row.envelope.work_id)
        if self.ordered or work is None:
            return False
        first = [self.outbox[name].get(one) for one in (work.opening_id, work.terminal_id or "")]
        return any(one is not None and one.number < row.number and one.is_outstanding for one in first)

    def work(self, name: str, work_id: str | None) -> WorkView | None:
        return self.peers[name].works.get((WORKSPACE, CHANNEL, work_id or ""))

    def send(self, name: str, row: Row) -> None:
        """One publish of `row`. A retry of the first unanswered one of its flow says that its predecessor is settled."""
        envelope, settled = row.envelope, ""
        if self.held(name, row):
            return
        after = predecessor_of(envelope) if row.attempts else None
        first = next(one for one in self.unanswered(name) if one.envelope.container == envelope.container)
        if after is not None and first is row:
            settled = settled_header(envelope.id, after.id, sender=name, to=self.other(name), signer=None)
        flying = Flying(envelope.work_id, envelope.raw, settled)
        self.wires[self.other(name)].append(flying)
        if self.flow and flying not in self.stored[self.other(name)]:
            self.stored[self.other(name)].append(flying)
        row.state = "published"
        row.attempts += 1

    def send_out(self, name: str, *, again: bool) -> None:
        """The publisher: what is queued, or all that is unanswered, in order."""
        for row in self.unanswered(name):
            if again or row.state == "queued":
                self.send(name, row)

    def arrive(self, name: str, *, at: int = 0, acknowledge: bool = True) -> None:
        """One message on the wire to `name` arrives, is decided on and committed."""
        if at >= len(self.wires[name]):
            return
        one = self.wires[name].pop(at)
        if one.raw is None:
            assert one.ack is not None
            self.answered(name, one.ack)
            return
        peer = self.peers[name]
        before = peer.counters["early"]
        taken = peer.receive(one.raw, one.settled) and peer.counters["early"] == before
        if not acknowledge:
            return
        self.stored[name] = [other for other in self.stored[name] if other != one]
        if taken:
            self.acknowledge(name, one)

    def acknowledge(self, name: str, one: Flying) -> None:
        assert one.raw is not None
        envelope = parse(one.raw, self.now)
        ack = self.peers[name].verdicts[envelope.id]
        if not self.ordered:
            ack = Ack(ack.id, "committed", None, envelope.digest)
        self.wires[self.other(name)].append(Flying(None, None, ack=ack))

    def answered(self, name: str, ack: Ack) -> None:
        row = self.outbox[name].get(ack.id)
        if row is None or not row.is_outstanding:
            return
        if ack.digest != row.envelope.digest:
            row.state, row.reason = "refused", "duplicate"
        elif ack.outcome == "committed":
            row.state = "receipted"
        else:
            row.state, row.reason = "refused", ack.reason

    def drain(self, name: str) -> None:
        """The agent takes everything in its inbox."""
        inbox = self.peers[name].inbox
        self.handed[name] += inbox
        inbox.clear()

    def cut(self, name: str) -> None:
        """The connection of `name` is lost with what is in flight to it. Once it is back, it sends again what is unanswered."""
        self.wires[name].clear()
        if self.ordered:
            self.send_out(name, again=True)

    def crash(self, name: str) -> None:
        """As `cut`; it has not written down yet that the broker has its messages."""
        self.wires[name].clear()
        for row in self.unanswered(name):
            row.state = "queued"

    def redeliver(self, name: str) -> None:
        """The flow delivers again what was not acknowledged."""
        self.wires[name] += self.stored[name]

    def come_to_rest(self) -> None:
        """Nothing fails any more."""
        for _ in range(200):
            if not any(self.unanswered(name) or self.wires[name] for name in NAMES):
                return
            for name in NAMES:
                self.send_out(name, again=True)
            while any(self.wires.values()):
                for name in NAMES:
                    self.arrive(name)
                    self.drain(name)
        raise AssertionError("it does not come to rest")

    def faults(self) -> set[str]:
        """What is broken of the promise, at rest."""
        found: set[str] = set()
        for name in NAMES:
            there, rows = self.peers[self.other(name)], self.outbox[name]
            arrived = [
                envelope for direction, envelope in there.stored if direction == "in" and not _is_unstored(envelope)
            ]
            if sorted(envelope.id for envelope in arrived) != sorted(rows):
                found.add("lost or doubled")
            if any(count > 1 for count in Counter(message_id for message_id, _, _ in there.history).values()):
                found.add("applied twice")
            for processed in (arrived, self.handed[self.other(name)]):
                for container in (THREAD, ROOM):
                    flow = [rows[envelope.id].number for envelope in processed if envelope.container == container]
                    if flow != sorted(flow):
                        found.add("out of order")
            for message_id, row in rows.items():
                verdict = there.verdicts[message_id]
                truth = "receipted" if verdict.outcome == "committed" else "refused"
                if (row.state, row.reason) != (truth, verdict.reason):
                    found.add("untruthful state")
        ours, theirs = (self.peers[name].works for name in NAMES)
        if ours.keys() != theirs.keys():
            found.add("works differ")
        crossed = differ if self.ordered else lambda work, other: work.state != other.state
        if any(crossed(work, theirs[key]) for key, work in ours.items() if key in theirs):
            found.add("states differ")
        return found
