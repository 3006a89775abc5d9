"""Target `parse`: any bytes through the parser, the decision of a receiver and the replay of sequences."""

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from aghbus.protocol.agh.effects import (
    Advance,
    Bind,
    Deliver,
    Effects,
    Ignore,
    Open,
    PeerIdConflict,
    Quarantine,
    Queue,
    RecordId,
    Requeue,
    StoreEnvelope,
)
from aghbus.protocol.agh.envelope import OPENING_KINDS, Envelope, parse
from aghbus.protocol.agh.errors import REASON_CODES, Expired, ProtocolError, Undecodable
from aghbus.protocol.agh.identifiers import pair_of
from aghbus.protocol.agh.lifecycle import State, WorkView
from aghbus.protocol.agh.receive import Receiver, StoredState, decide
from aghbus.protocol.agh.replay import Replay
from aghbus.protocol.agh.replay import check as judge
from aghbus.protocol.agh.rooms import Binding
from tests.fuzz.oracles import NOW, dump, only, reading, same, vector_lines
from tests.support.wire import judged, with_unknown_member

OUTSIDER: Final = "somebody-else"
_FIELDS: Final = [
    "id",
    "workspace_id",
    "kind",
    "channel",
    "to",
    "work_id",
    "reply_to",
    "trace_id",
    "causation_id",
    "ts",
]
_STATES: Final[tuple[State, ...]] = ("submitted", "working", "needs_input", "completed")


def check(raw: bytes) -> None:
    """Check the invariants for any bytes. Raises AssertionError."""
    document = reading(raw)
    if document:
        assert judged(raw) == judged(with_unknown_member(raw)), "the two ways of decoding disagree"
    try:
        envelope = parse(raw, NOW)
    except ProtocolError as error:
        _refused(raw, error, document)
        return
    assert document is not None, "accepted what Python's own reader refuses"
    _fields_are_those_received(envelope, document)
    _reads_the_same_again(envelope, document)
    _fresh_as_long_as_the_specification_says(envelope)
    _replayed_once(raw, envelope)
    for us in {envelope.to or OUTSIDER, OUTSIDER, envelope.sender}:
        for observe in (False, True):
            for view in views(envelope, us):
                check_decision(envelope, view, receiver(us, envelope, observe=observe))


def seeds() -> Iterator[bytes]:
    """Every envelope of the vectors."""
    for case in vector_lines("envelopes", "rules", "kind_examples"):
        yield dump(case["envelope"])
    for case in vector_lines("lifecycles"):
        yield from map(dump, case["envelopes"])


def receiver(us: str, envelope: Envelope, *, observe: bool = False) -> Receiver:
    """A receiver on the envelope's channel."""
    channels = frozenset({(envelope.workspace_id, envelope.channel)})
    return Receiver(self_id=us, now=NOW, mint=lambda: "msg_minted", channels=channels, observe=observe)


def views(envelope: Envelope, us: str) -> Iterator[StoredState]:
    """States of a receiver that bear on the envelope: none, seen before, the work in every state, others' rooms and works."""
    room = Binding(pair_of("third", "fourth"), authoritative=False)
    yield StoredState()
    yield StoredState(duplicate=True)
    yield StoredState(sent_by_us=True, room=room)
    if envelope.work_id is None or envelope.sender == us:
        return
    for initiator, target in ((us, envelope.sender), (envelope.sender, us), ("third", "fourth")):
        for state in _STATES:
            work = _work(envelope, initiator, target, state, us)
            yield StoredState(work=work)
            yield StoredState(work=work, duplicate=True)
    yield StoredState(
        work=msgspec.structs.replace(_work(envelope, envelope.sender, us, "working", us), container="elsewhere")
    )


def check_decision(envelope: Envelope, view: StoredState, receiver: Receiver) -> None:
    """Who gets something delivered, stored or answered, and who never does (spec sections 4 to 6)."""
    effects = decide(envelope, view, receiver)
    us, found = receiver.self_id, [type(effect) for effect in effects]
    check_refusals_come_last(effects)
    if Deliver in found:
        assert found.count(Deliver) == found.count(StoreEnvelope) == found.count(RecordId) == 1
        assert envelope.kind in OPENING_KINDS and envelope.to in (None, us) and envelope.sender != us
        assert not view.duplicate
    if envelope.to not in (None, us) or envelope.sender == us:
        assert not {Deliver, Queue, Requeue, Bind}.intersection(found)
        assert envelope.surface != "direct" or StoreEnvelope not in found, "a room of others was kept"
    if envelope.kind in ("receipt", "trace"):
        assert all(effect.missed for effect in effects if isinstance(effect, Requeue)), (
            "only a terminal message that was given up is sent again"
        )
        assert not any(isinstance(effect, Queue) and effect.automatic for effect in effects), "a receipt was answered"
    for effect in effects:
        if isinstance(effect, StoreEnvelope):
            _stored_as_judged(effect, Deliver in found, envelope, view, us)
        if isinstance(effect, Open):
            assert view.work is None and envelope.to is not None and effect.work.initiator == envelope.sender
        if isinstance(effect, Advance):
            assert effect.before == view.work and not effect.before.is_terminal, "a work that has ended moved"
            assert effect.before.other(envelope.sender) is not None, "a third peer changed a work"
        if isinstance(effect, Queue):
            check_answer(effect, us, envelope.sender)


def _stored_as_judged(kept: StoreEnvelope, delivered: bool, envelope: Envelope, view: StoredState, us: str) -> None:
    if envelope.surface == "direct":
        assert kept.pair == pair_of(envelope.sender, us)
    refused = kept.verdict is not None and kept.verdict.outcome in ("ignored", "rejected")
    assert not (delivered and refused), "what the lifecycle refused reached the agent"
    if kept.verdict is not None and view.work is not None and view.work.is_terminal:
        assert refused and kept.verdict.reason != "invalid_transition", (
            "a work that has ended is closed before all else"
        )


def check_refusals_come_last(effects: Effects) -> None:
    """`PeerIdConflict` comes alone; after `Quarantine` and `Ignore` only an answer to the sender may come (effects.py)."""
    if effects and isinstance(effects[0], PeerIdConflict):
        assert len(effects) == 1
    if effects and isinstance(effects[0], Quarantine | Ignore):
        assert only(effects[1:], Queue, Requeue)
    assert not any(isinstance(effect, PeerIdConflict | Quarantine | Ignore) for effect in effects[1:])
    assert sum(isinstance(effect, Queue) for effect in effects) <= 1


def check_answer(effect: Queue, us: str, to: str) -> None:
    """An automatic receipt is an envelope that anybody would take, from us to the peer that it answers."""
    answer = parse(effect.envelope.raw, NOW)
    assert (answer.kind, answer.sender, answer.to) == ("receipt", us, to)
    assert only(effect.effects, StoreEnvelope, Advance)
    assert sum(isinstance(inner, StoreEnvelope) and inner.direction == "out" for inner in effect.effects) == 1


def _refused(raw: bytes, error: ProtocolError, document: dict[str, Any] | None) -> None:
    assert error.reason in REASON_CODES
    assert error.detail.isprintable() and len(error.detail) < 1_000, "text of the peer in the words of an error"
    assert isinstance(error, Undecodable) == (document is None), "two parsers disagree about JSON"
    assert Replay().feed(raw, NOW).outcome == "refused"
    assert not judge(raw, NOW).accept


def _fields_are_those_received(envelope: Envelope, document: dict[str, Any]) -> None:
    for field in _FIELDS:
        assert same(getattr(envelope, field), document.get(field)), field
    assert envelope.sender == document["from"]
    assert envelope.expires_at == document.get("expires_at")
    assert envelope.surface == document.get("surface")
    assert envelope.container == (document.get("thread_id") or document.get("direct_id"))
    assert same(envelope.document(), document)
    assert same(envelope.extensions(), document.get("ext") or {})


def _reads_the_same_again(envelope: Envelope, document: dict[str, Any]) -> None:
    assert parse(envelope.raw, NOW) == envelope
    again = parse(json.dumps(document).encode(), NOW)  # other bytes for the same value
    for field in (*_FIELDS, "sender", "surface", "container", "expires_at"):
        assert getattr(again, field) == getattr(envelope, field), field
    assert same(_plain(again.body), _plain(envelope.body))


def _plain(body: Any) -> Any:
    """A body as a JSON value: what it keeps as raw bytes may be spelled in another way."""
    return json.loads(msgspec.json.encode(body))


def _fresh_as_long_as_the_specification_says(envelope: Envelope) -> None:
    """Spec section 5 step 3, written out once more."""
    ts, end = envelope.ts, envelope.fresh_until
    assert end > NOW and ts <= NOW + 300
    assert end == (ts + 301 if envelope.expires_at is None else min(envelope.expires_at, ts + 604_801))
    parse(envelope.raw, end - 1)
    try:
        parse(envelope.raw, end)
    except Expired:
        return
    raise AssertionError("fresh after its end")


def _replayed_once(raw: bytes, envelope: Envelope) -> None:
    replay = Replay()
    first, second = replay.feed(raw, NOW), replay.feed(raw, NOW)
    assert first.id == second.id == envelope.id
    if first.outcome == "refused":
        assert second == first and not judge(raw, NOW).accept
    else:
        assert (second.outcome, second.reason) == ("ignored", "duplicate")


def _work(envelope: Envelope, initiator: str, target: str, state: State, us: str) -> WorkView:
    ended = state == "completed"
    return WorkView(
        workspace_id=envelope.workspace_id,
        channel=envelope.channel,
        work_id=envelope.work_id or "",
        surface=envelope.surface or "",
        container=envelope.container or "",
        initiator=initiator,
        target=target,
        state=state,
        opening_id="msg_open",
        advanced=state != "submitted",
        terminal_id="msg_end" if ended else None,
        terminal_sender=us if ended else None,
    )
