"""Delivery as a model: the protocol's own decisions on a disk that survives crashes, and a wire that loses, repeats and reorders.

The model has what the daemon's publisher promises (docs/adr/0005): everything unanswered goes out again in order, and nothing of
a work before the opening or our end of it is acknowledged. Whatever happens, once it comes to rest: nothing committed is lost,
nothing is applied twice, both sides of every work are in the same terminal state.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, rule

from aghbus.protocol.errors import Refused
from aghbus.protocol.lifecycle import TERMINAL_STATES, WorkView
from tests.support.peers import CHANNEL, WORKSPACE, Bus, Peer

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

NAMES = ("ops", "worker")
SIDES = st.sampled_from(NAMES)
WORKS = st.integers(0, 3)


class Row(msgspec.Struct):
    """One row of an outbox: `number` is its place in the order of the store."""

    number: int
    message_id: str
    work_id: str | None
    raw: bytes
    state: str = "queued"


class Flying(NamedTuple):
    """Something on the wire: an envelope, or the acknowledgement of `message_id` (no bytes)."""

    message_id: str
    work_id: str | None
    raw: bytes | None


class Net(Bus):
    """A bus on which publishing means: a row in the outbox of the sender. `wires` are what is on its way to each side."""

    def __init__(self, *, careful: bool = True) -> None:
        super().__init__()
        self.careful = careful
        self.outbox: dict[str, dict[str, Row]] = {name: {} for name in NAMES}
        self.wires: dict[str, list[Flying]] = {name: [] for name in NAMES}
        for name in NAMES:
            self.join(name)

    def publish(self, sender: str, to: str | None, raw: bytes) -> None:
        fields = msgspec.json.decode(raw)
        rows = self.outbox[sender]
        row = rows.setdefault(fields["id"], Row(len(rows), fields["id"], fields.get("work_id"), raw))
        row.state = "queued"

    def other(self, name: str) -> str:
        return NAMES[1 - NAMES.index(name)]

    def unanswered(self, name: str) -> list[Row]:
        return [row for row in self.outbox[name].values() if row.state != "receipted"]

    def held(self, name: str, row: Row) -> bool:
        """Whether our opening or our end of the same work is before it, and unanswered."""
        work = self.work(name, row.work_id)
        if not self.careful or work is None:
            return False
        first = [self.outbox[name].get(one) for one in (work.opening_id, work.terminal_id or "")]
        return any(one is not None and one.number < row.number and one.state != "receipted" for one in first)

    def work(self, name: str, work_id: str | None) -> WorkView | None:
        return self.peers[name].works.get((WORKSPACE, CHANNEL, work_id or ""))

    def send_out(self, name: str, *, again: bool) -> None:
        """The publisher: what is queued, or all that is unanswered, in order."""
        wire = self.wires[self.other(name)]
        for row in self.unanswered(name):
            if (again or row.state == "queued") and not self.held(name, row):
                wire.append(Flying(row.message_id, row.work_id, row.raw))
                row.state = "published"

    def arrive(self, name: str, *, acknowledge: bool = True) -> None:
        """The first on the wire to `name` arrives, is decided on and committed."""
        if not self.wires[name]:
            return
        first = self.wires[name].pop(0)
        if first.raw is None:
            row = self.outbox[name].get(first.message_id)
            if row is not None:
                row.state = "receipted"
            return
        self.peers[name].receive(first.raw)
        if acknowledge:
            self.wires[self.other(name)].append(Flying(first.message_id, None, None))

    def crash(self, name: str) -> None:
        """What was on its way to it is lost, and so is what it had not yet written down: that the broker has its messages."""
        self.wires[name].clear()
        for row in self.unanswered(name):
            row.state = "queued"

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
        raise AssertionError("it does not come to rest")

    def check(self) -> None:
        """The promise."""
        for name in NAMES:
            there = self.peers[self.other(name)]
            arrived = [envelope.id for direction, envelope in there.stored if direction == "in"]
            assert sorted(arrived) == sorted(self.outbox[name]), "committed here, and there once"
            applied = [(message_id, after) for message_id, _, after in there.history]
            assert len({message_id for message_id, _ in applied}) == len(applied), "applied once"
        ours, theirs = (self.peers[name].works for name in NAMES)
        assert ours.keys() == theirs.keys()
        for key, work in ours.items():
            assert work.opening_id == theirs[key].opening_id
            if work.is_terminal or theirs[key].is_terminal:
                assert work.state == theirs[key].state, (key, work, theirs[key])


class DeliveryMachine(RuleBasedStateMachine):
    """Agents that do what they like, but only one of the two ends a work: two ends that cross are no matter of delivery."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.enders: dict[str, str] = {}

    def act(self, name: str, what: Callable[[Peer, str], Any]) -> None:
        """An agent's request; a no of its own daemon is an answer too."""
        try:
            what(self.net.peers[name], self.net.other(name))
        except Refused:
            return

    # the agents

    @rule(name=SIDES, number=WORKS, ender=SIDES, private=st.booleans())
    def open(self, name: str, number: int, ender: str, private: bool) -> None:
        work_id = f"work_{name}_{number}"
        if self.net.work(name, work_id) is None:
            self.enders[work_id] = ender
            self.act(name, lambda peer, to: peer.whisper(to, work_id) if private else peer.say(to, work_id))

    @rule(name=SIDES, opener=SIDES, number=WORKS)
    def speak(self, name: str, opener: str, number: int) -> None:
        self.step(name, f"work_{opener}_{number}", "say", {"text": "go on"})

    @rule(name=SIDES, opener=SIDES, number=WORKS, state=st.sampled_from(["working", "needs_input"]))
    def report(self, name: str, opener: str, number: int, state: str) -> None:
        self.step(name, f"work_{opener}_{number}", "trace", {"state": state})

    @rule(opener=SIDES, number=WORKS, state=st.sampled_from(["completed", "failed", "canceled"]))
    def end(self, opener: str, number: int, state: str) -> None:
        self.finish(f"work_{opener}_{number}", state)

    def finish(self, work_id: str, state: str = "completed") -> None:
        ender = self.enders.get(work_id)
        work = self.net.work(ender, work_id) if ender else None
        if ender is None or work is None:
            return
        if work.initiator == ender:
            self.step(ender, work_id, "receipt", {"for_id": work.opening_id, "status": "canceled"})
        else:
            self.step(ender, work_id, "trace", {"state": state})

    def step(self, name: str, work_id: str, kind: str, body: dict[str, Any]) -> None:
        work = self.net.work(name, work_id)
        if work is None or (kind == "trace" and work.target != name):
            return
        place = {"surface": work.surface, "container": work.container}
        self.act(name, lambda peer, to: peer.send(kind, body, to=to, work_id=work_id, **place))

    # the daemons

    @rule(name=SIDES)
    def publish(self, name: str) -> None:
        self.net.send_out(name, again=False)

    @rule(name=SIDES)
    def retry(self, name: str) -> None:
        self.net.send_out(name, again=True)

    @rule(name=SIDES, times=st.integers(1, 6))
    def deliver(self, name: str, times: int) -> None:
        for _ in range(times):
            self.net.arrive(name)

    # what goes wrong

    @rule(name=SIDES)
    def crash_before_commit(self, name: str) -> None:
        self.net.crash(name)

    @rule(name=SIDES)
    def crash_after_commit(self, name: str) -> None:
        self.net.arrive(name, acknowledge=False)
        self.net.crash(name)

    @rule(name=SIDES, at=st.integers(0, 20))
    def lose(self, name: str, at: int) -> None:
        if at < len(self.net.wires[name]):
            del self.net.wires[name][at]

    @rule(name=SIDES, at=st.integers(0, 20))
    def repeat(self, name: str, at: int) -> None:
        wire = self.net.wires[name]
        if at < len(wire):
            wire.append(wire[at])

    @rule(name=SIDES, at=st.integers(0, 20))
    def swap(self, name: str, at: int) -> None:
        """Envelopes of one work keep their order on one wire, as in NATS; others overtake one another."""
        wire = self.net.wires[name]
        if at + 1 < len(wire) and wire[at].work_id != wire[at + 1].work_id:
            wire[at], wire[at + 1] = wire[at + 1], wire[at]

    def teardown(self) -> None:
        self.net.come_to_rest()
        for work_id in list(self.enders):
            self.finish(work_id)
        self.net.come_to_rest()
        self.net.check()
        for key, work in self.net.peers["ops"].works.items():
            assert work.state in TERMINAL_STATES, key


TestDelivery = DeliveryMachine.TestCase
TestDelivery.settings = settings(
    max_examples=1000, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("careful", [True, False])
def test_without_the_wait_for_an_opening_an_end_is_lost(careful: bool) -> None:
    net = Net(careful=careful)
    ops = net.peers["ops"]
    opening = ops.say("worker", "work_x")
    net.send_out("ops", again=False)
    net.wires["worker"].clear()
    ops.receipt("worker", "work_x", "canceled")
    net.send_out("ops", again=False)
    net.arrive("worker")
    net.come_to_rest()
    state = net.peers["worker"].works[WORKSPACE, CHANNEL, "work_x"].state
    assert state == ("canceled" if careful else "submitted")
    assert opening.id in net.outbox["ops"]
