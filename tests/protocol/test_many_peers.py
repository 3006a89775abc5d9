"""Peers on a bus that reorders, repeats and loses messages: invariants of their works, with and without order."""

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aghbus.protocol.agh.bodies import Receipt, Trace
from aghbus.protocol.agh.discovery import Record
from aghbus.protocol.agh.effects import PeerIdConflict, Quarantine
from aghbus.protocol.agh.envelope import Envelope, parse
from aghbus.protocol.agh.identifiers import direct_id
from aghbus.protocol.agh.lifecycle import TERMINAL_STATES
from aghbus.protocol.base.errors import Refused
from tests.support.peers import CHANNEL, WORKSPACE, Bus, Peer

WORK: Final = "work_1"
# What either side's agent may try at any time; what its own copy of the work refuses does not leave.
MOVES: Final = (
    "ops say",
    "ops cancel",
    "worker accept",
    "worker say",
    "worker working",
    "worker needs_input",
    "worker completed",
    "worker failed",
    "worker reject",
    "outsider say",
    "outsider failed",
)
CLOSING: Final = frozenset({"ops cancel", "worker completed", "worker failed", "worker reject"})
FATES: Final = ("deliver", "repeat", "drop")


class Scene:
    """Ops has opened a work for worker; an outsider shares the channel and knows the work's id."""

    def __init__(self) -> None:
        self.bus = Bus()
        self.ops, self.worker, self.outsider = (self.bus.join(name) for name in ("ops", "worker", "outsider"))
        self.opening = self.ops.say("worker", WORK)
        self.ends: dict[str, str] = {}
        self.conversation = 0

    @property
    def sides(self) -> tuple[Peer, Peer]:
        return self.ops, self.worker

    def try_move(self, move: str) -> None:
        who, what = move.split()
        peer = self.bus.peers[who]
        other = "worker" if who == "ops" else "ops"
        if peer is self.worker and peer.work(WORK) is None:
            return  # an agent does not speak of a work that it has not known
        try:
            if what == "say":
                peer.say(other, WORK)
            elif what in ("accept", "cancel", "reject"):
                status = {"accept": "accepted", "cancel": "canceled", "reject": "rejected"}[what]
                peer.receipt(other, WORK, status, "busy" if what == "reject" else None)
            else:
                peer.trace(other, WORK, what)
        except Refused:
            return

    def forge(self) -> None:
        """The outsider's trace, past its own copy: a hostile daemon would not ask it."""
        self.bus.publish("outsider", "ops", self._forged())

    def _forged(self) -> bytes:
        raw = self.opening.raw.replace(b'"from":"ops","to":"worker"', b'"from":"outsider","to":"ops"')
        raw = raw.replace(b'"kind":"say"', b'"kind":"trace"').replace(b'{"text":"go on"}', b'{"state":"failed"}')
        assert isinstance(parse(raw, self.bus.now).body, Trace)
        return raw

    def deliver(self, index: int) -> None:
        parcel = self.bus.parcels[index]
        receiver = self.bus.peers[parcel.receiver]
        envelope = parse(parcel.raw, self.bus.now)
        # An end that comes before its opening finds no work, and its copies are duplicates: only first sights count.
        knew = receiver.work(WORK) is not None and (WORKSPACE, envelope.sender, envelope.id) not in receiver.seen
        self.conversation += envelope.kind in ("say", "capability")
        early = receiver.counters["early"]
        self.bus.deliver(index)
        knew = knew and receiver.counters["early"] == early  # an early message is not taken: it is repeated later
        if knew and is_end(envelope) and envelope.sender != "outsider" and receiver is not self.outsider:
            work = receiver.work(WORK)
            assert work is not None
            assert work.is_terminal, "an end arrived and the work goes on"
        self.check()

    def check(self) -> None:
        for peer in self.sides:
            work = peer.work(WORK)
            if work is not None and work.is_terminal:
                assert self.ends.setdefault(peer.name, work.state) == work.state, "a terminal state was left"
        for peer in self.bus.peers.values():
            ids = [(envelope.sender, envelope.id) for envelope in peer.inbox]
            assert len(ids) == len(set(ids)), "delivered twice"
            after = [state for _, _, state in peer.history]
            assert not any(state in TERMINAL_STATES for state in after[:-1]) or peer is self.outsider

    def no_storm(self) -> None:
        """At most one receipt per delivered say or capability, and one repetition of an end."""
        automatic = sum(peer.counters["automatic"] for peer in self.bus.peers.values())
        requeued = sum(peer.counters["requeued"] for peer in self.bus.peers.values())
        assert automatic <= self.conversation
        assert requeued <= self.conversation


def is_end(envelope: Envelope) -> bool:
    body = envelope.body
    if isinstance(body, Receipt):
        return body.status in ("rejected", "canceled")
    return isinstance(body, Trace) and body.state in TERMINAL_STATES


def state(peer: Peer) -> str | None:
    work = peer.work(WORK)
    return work.state if work else None


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(MOVES + FATES * 4), st.integers(0, 10**6)), max_size=60), st.booleans())
def test_invariants_hold_in_any_order_with_losses_and_repetitions(script: list[tuple[str, int]], forged: bool) -> None:
    """Ends are final, every end that arrives ends the work, nothing is delivered twice, outsiders move nothing, no storm."""
    scene = Scene()
    if forged:
        scene.forge()
    for move, pick in script:
        if move in MOVES:
            scene.try_move(move)
        elif scene.bus.parcels:
            index = pick % len(scene.bus.parcels)
            if move == "deliver":
                scene.deliver(index)
            elif move == "repeat":
                scene.bus.parcels.append(scene.bus.parcels[index])
            else:
                del scene.bus.parcels[index]
    while scene.bus.parcels:
        scene.deliver(0)
    scene.no_storm()
    for peer in scene.sides:
        for _, envelope in peer.stored:
            assert envelope.sender in ("ops", "worker", "outsider")
        changed_by = {envelope_id for envelope_id, before, after in peer.history if before != after}
        assert not any("outsider" in envelope_id for envelope_id in changed_by)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(MOVES + FATES[:2] * 4), st.integers(0, 10**6)), max_size=60))
def test_in_order_with_repetitions_both_sides_reach_the_same_end(script: list[tuple[str, int]]) -> None:
    """Each peer's messages arrive in their order (as one publisher's do), at least once, and again at any later time."""
    scene = Scene()
    closed = False
    for move, pick in script:
        if move in MOVES and not (closed and move in CLOSING):
            scene.try_move(move)
            closed = closed or any(
                peer.work(WORK) is not None and state(peer) in TERMINAL_STATES for peer in scene.sides
            )
        elif move == "deliver" and scene.bus.parcels:
            sender = scene.bus.parcels[pick % len(scene.bus.parcels)].sender
            scene.deliver(next(i for i, parcel in enumerate(scene.bus.parcels) if parcel.sender == sender))
        elif move == "repeat" and scene.bus.parcels:
            scene.bus.parcels.append(scene.bus.parcels[pick % len(scene.bus.parcels)])
    while scene.bus.parcels:
        scene.deliver(0)
    scene.no_storm()
    if closed:  # open states may differ for a while, where an answer and a question crossed
        assert state(scene.ops) == state(scene.worker)
    assert [state(peer) in TERMINAL_STATES for peer in scene.sides] == [closed, closed]


@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=6), st.sampled_from(TERMINAL_STATES))
def test_the_traces_of_the_target_in_any_order_give_its_end(order: list[int], again: list[int], end: str) -> None:
    scene = Scene()
    scene.deliver(0)
    for move in ("accept", "working", "needs_input", "working", "working"):
        scene.try_move(f"worker {move}")
    scene.worker.trace("ops", WORK, end)
    parcels, scene.bus.parcels = scene.bus.parcels, []
    for index in [*order, *again]:
        scene.bus.parcels.append(parcels[index])
    while scene.bus.parcels:
        scene.deliver(0)
    assert state(scene.ops) == state(scene.worker) == end


@pytest.mark.parametrize("end", ["completed", "failed", "canceled"])
def test_a_message_on_an_ended_work_is_answered_with_its_end(end: str) -> None:
    scene = Scene()
    scene.bus.deliver_all()
    scene.worker.trace("ops", WORK, end)
    scene.bus.parcels.clear()  # lost
    scene.ops.say("worker", WORK)
    scene.bus.deliver_all()
    assert state(scene.ops) == end
    assert scene.worker.counters["requeued"] == 1


@pytest.mark.parametrize("end", ["completed", "failed", "canceled"])
def test_a_repeated_opening_of_an_ended_work_is_answered_with_its_end(end: str) -> None:
    scene = Scene()
    retry = scene.bus.parcels[0]
    scene.bus.deliver_all()
    scene.worker.trace("ops", WORK, end)
    scene.bus.parcels[:] = [retry]
    scene.bus.deliver_all()
    assert state(scene.ops) == end
    assert len(scene.worker.inbox) == 1


def test_a_rejection_does_not_overtake_the_terminal_message_before_it() -> None:
    """The rejection names the terminal message as its predecessor, and is not taken before it."""
    scene = Scene()
    scene.bus.deliver_all()
    scene.worker.trace("ops", WORK, "completed")
    scene.bus.parcels.clear()
    scene.ops.say("worker", WORK)
    scene.bus.deliver()
    scene.bus.parcels.reverse()
    scene.bus.deliver_all()
    assert (state(scene.ops), state(scene.worker)) == ("completed", "completed")


def test_of_two_simultaneous_ends_each_side_keeps_its_own() -> None:
    scene = Scene()
    scene.bus.deliver_all()
    scene.ops.receipt("worker", WORK, "canceled")
    scene.worker.trace("ops", WORK, "completed")
    scene.bus.deliver_all()
    assert (state(scene.ops), state(scene.worker)) == ("canceled", "completed")


def test_an_expired_opening_is_closed_by_its_initiator() -> None:
    bus = Bus()
    ops, worker = bus.join("ops"), bus.join("worker")
    ops.say("worker", WORK, expires_at=bus.now + 10)
    bus.now += 10
    bus.deliver_all()
    assert state(ops) == "canceled"
    assert (state(worker), worker.inbox) == (None, [])


def test_a_late_copy_does_not_close_an_opening_that_arrived_in_time() -> None:
    bus = Bus()
    ops, worker = bus.join("ops"), bus.join("worker")
    ops.say("worker", WORK, expires_at=bus.now + 10)
    late = bus.parcels[0]
    bus.deliver_all()
    bus.now += 10
    bus.parcels.append(late)
    bus.deliver_all()
    assert (state(ops), state(worker)) == ("submitted", "submitted")


def test_a_work_in_a_direct_room_is_seen_only_by_its_two_peers() -> None:
    bus = Bus()
    ops, worker = bus.join("ops"), bus.join("worker")
    watcher = bus.join("watcher", observe=True)
    ops.whisper("worker", WORK)
    bus.deliver_all()
    room = direct_id(WORKSPACE, CHANNEL, "ops", "worker")
    worker.trace("ops", WORK, "completed", surface="direct", container=room)
    bus.deliver_all()
    assert state(ops) == state(worker) == "completed"
    assert (watcher.stored, watcher.works, watcher.inbox) == ([], {}, [])
    assert watcher.counters["private_room"] == 2


def test_an_observer_tracks_the_works_of_other_peers() -> None:
    bus = Bus()
    ops, worker = bus.join("ops"), bus.join("worker")
    watcher = bus.join("watcher", observe=True)
    ops.say("worker", WORK)
    bus.deliver_all()
    for move in ("working", "needs_input"):
        worker.trace("ops", WORK, move)
    bus.deliver_all()
    assert state(watcher) == "needs_input"
    ops.say("worker", WORK)
    bus.deliver_all()
    assert state(watcher) == state(ops) == state(worker) == "working"
    assert (watcher.inbox, watcher.counters["automatic"]) == ([], 0)


def test_a_thousand_copies_get_at_most_one_receipt_each() -> None:
    scene = Scene()
    scene.bus.parcels *= 1000
    assert scene.bus.deliver_all() == 1000 + 999
    assert scene.worker.counters["automatic"] == 999
    assert (scene.ops.counters["automatic"], len(scene.worker.inbox)) == (0, 1)
    assert scene.ops.inbox == []


def test_whois_is_answered_by_matching_peers_and_by_a_directed_peer() -> None:
    bus = Bus()
    record = Record("test.run", "Runs tests.", "sha256:x", {"id": "test.run"})
    ops, _, bystander = bus.join("ops"), bus.join("worker", catalog=(record,)), bus.join("bystander")
    asked = ops.send("whois", {"type": "request", "query": "test.run"})
    directed = ops.send("whois", {"type": "request", "query": "test.run"}, to="bystander")
    bus.deliver_all()
    assert [card.peer_id for card in ops.answers[asked.id]] == ["worker"]
    assert [card.peer_id for card in ops.answers[directed.id]] == ["bystander"]
    assert ops.counters["own"] == 1  # its own broadcast coming back
    assert "worker" not in bystander.presence


def test_a_second_daemon_with_our_id_is_detected() -> None:
    here, there = Bus(), Bus()
    here.join("ops")
    there.join("ops").send("greet", {"peer_card": there.peers["ops"].card.to_wire()})
    effects = here.peers["ops"].receive(there.parcels[0].raw)
    assert isinstance(effects[0], PeerIdConflict)


def test_garbage_changes_nothing_and_valid_traffic_continues() -> None:
    scene = Scene()
    direct = scene.opening.raw.replace(b'"say"', b'"direct"').replace(scene.opening.id.encode(), b"msg_garbage")
    for raw in (b"", b"\xff", b"{}", b"[1]", scene.opening.raw[:-1], direct):
        scene.bus.peers["outsider"].receive(raw)
        assert isinstance(scene.worker.receive(raw)[0], Quarantine)
    assert scene.worker.works == {}
    scene.bus.deliver_all()
    assert [envelope.id for envelope in scene.worker.inbox] == [scene.opening.id]
    assert state(scene.ops) == "submitted"
