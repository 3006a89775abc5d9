"""A simulator of many peers: pure state in dictionaries, on a bus in memory that a test edits mid-flight.

Every peer does what a daemon does with the effects that the protocol decides, and nothing else. The bus holds parcels
(one envelope on its way to one peer); a test delivers, repeats, drops or reorders them as it likes.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.protocol.agh import effects as fx
from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.delivery.acks import Ack, ack_of
from aghbus.protocol.agh.delivery.order import Predecessor
from aghbus.protocol.agh.discovery import Record, build_card, rich_response, should_answer
from aghbus.protocol.agh.envelope import OPENING_KINDS, Envelope, parse
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.identifiers import direct_id
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.partial_parse import partial_parse, readable
from aghbus.protocol.agh.receive import Receiver, StoredState, decide, refuse
from aghbus.protocol.agh.rooms import Binding
from aghbus.protocol.agh.send import Draft, apply_own, build

WORKSPACE: Final = "ws_sim"
CHANNEL: Final = "builders"
THREAD: Final = "thread_sim"

WorkKey = tuple[str, str, str]


class Parcel(NamedTuple):
    """One envelope on its way from one peer to another."""

    sender: str
    receiver: str
    raw: bytes


class Agent:
    """What an agent sends."""

    name: str

    def work(self, work_id: str) -> WorkView | None:
        """Our copy of a work in the simulator's channel."""
        raise NotImplementedError

    def send(self, kind: str, body: Mapping[str, Any], **parts: Any) -> Envelope:
        """The sent envelope; raises if our own copy of the work forbids it."""
        raise NotImplementedError

    def say(self, to: str | None, work_id: str | None = None, *, text: str = "go on", **parts: Any) -> Envelope:
        """A say; with `to` and a new `work_id` it opens a work."""
        return self.send("say", {"text": text}, to=to, work_id=work_id, **parts)

    def whisper(self, to: str, work_id: str | None = None, **parts: Any) -> Envelope:
        """A say in the direct room of the two."""
        room = direct_id(WORKSPACE, CHANNEL, self.name, to)
        return self.say(to, work_id, **{"surface": "direct", "container": room, **parts})

    def trace(self, to: str, work_id: str, state: str, **parts: Any) -> Envelope:
        """A trace of `state`."""
        return self.send("trace", {"state": state}, to=to, work_id=work_id, **parts)

    def receipt(self, to: str, work_id: str, status: str, reason: str | None = None, **parts: Any) -> Envelope:
        """A receipt about the work's opening envelope."""
        work = self.work(work_id)
        body = {"for_id": work.opening_id if work else "msg_unknown", "status": status, "reason_code": reason}
        return self.send("receipt", body, to=to, work_id=work_id, **parts)


class Bus:
    """Holds every parcel until the test does something with it. `now` is everybody's clock, in Unix seconds."""

    def __init__(self, now: int = 1_776_366_200) -> None:
        self.now = now
        self.peers: dict[str, Peer] = {}
        self.parcels: list[Parcel] = []
        self.sent = 0

    def join(self, name: str, **settings: Any) -> "Peer":
        """A new peer on this bus; `settings` are those of Peer."""
        self.peers[name] = peer = Peer(name, self, **settings)
        return peer

    def publish(self, sender: str, to: str | None, raw: bytes) -> None:
        """To everybody when `to` is None (the sender gets its own copy back too), else to that peer and the observers."""
        self.sent += 1
        for name, peer in self.peers.items():
            if to is None or name == to or (peer.observe and name != sender):
                self.parcels.append(Parcel(sender, name, raw))

    def predecessor(self, _sender: str, _to: str, _container: str) -> Predecessor | None:
        """The last unanswered envelope of that stream; this bus knows of no answers."""
        return None

    def close(self) -> None:
        """This bus has nothing open."""

    def deliver(self, index: int = 0) -> fx.Effects:
        """Hands one parcel over and returns what the receiver decided."""
        parcel = self.parcels.pop(index)
        return self.peers[parcel.receiver].receive(parcel.raw)

    def deliver_all(self, limit: int = 10_000) -> int:
        """In order, with all that is sent meanwhile; how many. Fails when it does not come to rest: a message storm."""
        for delivered in range(limit):
            if not self.parcels:
                return delivered
            self.deliver()
        raise AssertionError(f"still {len(self.parcels)} parcels after {limit} deliveries")


class Peer(Agent):
    """One daemon without a disk or a network. What it knows is in plain dictionaries for a test to look at. A `foreign` one
    ignores our extensions."""

    def __init__(
        self,
        name: str,
        bus: Bus,
        *,
        observe: bool = False,
        catalog: tuple[Record, ...] = (),
        foreign: bool = False,
    ) -> None:
        self.name = name
        self.foreign = foreign
        self.bus = bus
        self.observe = observe
        self.catalog = catalog
        self.card = build_card(name, catalog=catalog)
        self.works: dict[WorkKey, WorkView] = {}
        self.history: list[tuple[str, str, str]] = []  # envelope id, state before, state after
        self.rooms: dict[tuple[str, str, str], Binding] = {}
        self.seen: dict[tuple[str, str, str], int] = {}
        self.verdicts: dict[str, Ack] = {}  # of received envelopes, by id: what a duplicate is answered
        self.capacity: int | None = None  # of the inbox
        self.outbox: dict[str, Envelope] = {}
        self.stored: list[tuple[str, Envelope]] = []
        self.inbox: list[Envelope] = []
        self.presence: dict[str, PeerCard] = {}
        self.answers: dict[str, list[PeerCard]] = {}
        self.counters: Counter[str] = Counter()
        self._numbers = count(1)

    def mint(self) -> str:
        """The next envelope id of this peer."""
        return f"msg_{self.name}_{next(self._numbers)}"

    def work(self, work_id: str) -> WorkView | None:
        return self.works.get((WORKSPACE, CHANNEL, work_id))

    def send(self, kind: str, body: Mapping[str, Any], **parts: Any) -> Envelope:
        """Builds, applies to our own copy, and publishes. Raises as `build` and `apply_own` do, and then nothing has left.

        Conversation goes to the simulator's thread unless `surface` and `container` say otherwise.
        """
        if kind not in ("greet", "whois"):
            parts = {"surface": "thread", "container": THREAD, **parts}
        fields: dict[str, Any] = {"id": self.mint(), "workspace_id": WORKSPACE, "channel": CHANNEL, "ts": self.bus.now}
        if parts.get("to") is not None and parts.get("container") is not None:
            fields["after"] = self.bus.predecessor(self.name, parts["to"], parts["container"])
            fields["continues"] = kind in OPENING_KINDS and (parts.get("work_id") or "") in {
                one[2] for one in self.works
            }
        envelope = build(Draft(**{**fields, **parts, "kind": kind, "sender": self.name, "body": body}), self.bus.now)
        if kind in ("greet", "whois"):
            self.outbox[envelope.id] = envelope
        else:
            own = apply_own(envelope, self._work_of(envelope), self._room_of(envelope))
            self._queue(envelope, own)
        self.bus.publish(self.name, envelope.to, envelope.raw)
        return envelope

    def receive(self, raw: bytes, settled: str = "") -> fx.Effects:
        """The whole way of a received message; returns what was decided and has been carried out.

        `settled` is the header of that name. Nothing is carried out, and no effect returned, while the inbox is full.
        """
        receiver = Receiver(
            self_id=self.name,
            now=self.bus.now,
            mint=self.mint,
            channels=frozenset({(WORKSPACE, CHANNEL)}),
            observe=self.observe,
            processed=lambda *key: self.foreign or key in self.seen,
            predecessor=lambda target: self.bus.predecessor(self.name, target.sender, target.container),
        )
        try:
            envelope = parse(raw, self.bus.now)
        except ProtocolError as error:
            source = partial_parse(readable(raw, error), self.name, receiver.channels)
            work = self.works.get((source.workspace_id, source.channel, source.work_id)) if source else None
            taken = source is not None and (source.workspace_id, source.sender, source.id) in self.seen
            decided = refuse(error, source, StoredState(duplicate=taken, work=work), receiver)
            self._carry_out(None, decided)
        else:
            decided = decide(envelope, msgspec.structs.replace(self._view(envelope), settled=settled), receiver)
            if self.capacity is not None and len(self.inbox) >= self.capacity and fx.Deliver() in decided:
                return ()
            if (verdict := ack_of(envelope, decided)) is not None:
                self.verdicts.setdefault(envelope.id, verdict)
            self._carry_out(envelope, decided)
        return decided

    def _view(self, envelope: Envelope) -> StoredState:
        return StoredState(
            duplicate=(envelope.workspace_id, envelope.sender, envelope.id) in self.seen,
            sent_by_us=envelope.id in self.outbox,
            work=self._work_of(envelope),
            room=self._room_of(envelope),
        )

    def _work_of(self, envelope: Envelope) -> WorkView | None:
        return self.works.get((envelope.workspace_id, envelope.channel, envelope.work_id or ""))

    def _room_of(self, envelope: Envelope) -> Binding | None:
        if envelope.surface != "direct" or envelope.container is None:
            return None
        return self.rooms.get((envelope.workspace_id, envelope.channel, envelope.container))

    def _queue(self, envelope: Envelope, own: fx.Effects) -> None:
        self.outbox[envelope.id] = envelope
        self._carry_out(envelope, own)

    def _carry_out(self, envelope: Envelope | None, decided: fx.Effects) -> None:
        """The store's effects first, as one transaction; what is to be sent leaves after it, in its order."""
        published: list[Envelope] = []
        for effect in decided:
            match effect:
                case fx.Ignore(why=why):
                    self.counters[why] += 1
                case fx.Quarantine(reason=reason):
                    self.counters[reason] += 1
                case fx.Early():
                    self.counters["early"] += 1
                case fx.PeerIdConflict():
                    self.counters["conflict"] += 1
                case fx.Queue(envelope=own, effects=inner, automatic=automatic):
                    self.counters["automatic" if automatic else "closing"] += 1
                    self._queue(own, inner)
                    published.append(own)
                case fx.Requeue(missed=True):
                    self.counters["not_missed"] += 1  # nothing is given up here
                case fx.Requeue(message_id=message_id):
                    self.counters["requeued"] += 1
                    published.append(self.outbox[message_id])
                case _:
                    assert envelope is not None, f"{effect} without an envelope"
                    self._carry_out_one(envelope, effect)
        for own in published:
            self.bus.publish(self.name, own.to, own.raw)

    def _carry_out_one(self, envelope: Envelope, effect: fx.Effect) -> None:
        match effect:
            case fx.RecordId(until=until):
                key = (envelope.workspace_id, envelope.sender, envelope.id)
                assert key not in self.seen, "remembered twice"
                self.seen[key] = until
            case fx.StoreEnvelope(direction=direction):
                self.stored.append((direction, envelope))
            case fx.Bind(binding=binding):
                assert envelope.container is not None
                self.rooms[envelope.workspace_id, envelope.channel, envelope.container] = binding
            case fx.Open(work=work):
                assert self._work_of(envelope) is None, "opened twice"
                self.works[work.workspace_id, work.channel, work.work_id] = work
                self.history.append((envelope.id, "", work.state))
            case fx.Advance(before=before, after=after):
                key = (before.workspace_id, before.channel, before.work_id)
                assert self.works[key] == before, "decided on a stale copy"
                self.works[key] = after
                self.history.append((envelope.id, before.state, after.state))
            case fx.Deliver():
                self.inbox.append(envelope)
            case fx.Discovered(card=card, answer_to=answer_to):
                self.presence[card.peer_id] = card
                if answer_to is not None:
                    self.answers.setdefault(answer_to, []).append(card)
            case fx.AnswerWhois(request=request):
                self._answer(request)

    def _answer(self, request: Envelope) -> None:
        query = getattr(request.body, "query", "")
        if should_answer(query, request.to, self.card):
            card, ext = rich_response(self.card, self.catalog, request.extensions())
            body = {"type": "response", "peer_card": card.to_wire()}
            self.send("whois", body, to=request.sender, reply_to=request.id, ext=ext)
