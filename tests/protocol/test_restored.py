"""Openings that may have been processed before a restore are held; greets announce the epoch."""

from typing import Any

import pytest

from aghbus.protocol.agh.delivery.notices import reason_in
from aghbus.protocol.agh.delivery.restored import RESTORED_KEY, Restored, restored_in
from aghbus.protocol.agh.effects import Deliver, Hold, Open, Queue, StoreEnvelope
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.identifiers import direct_id
from aghbus.protocol.agh.lifecycle import opened_by
from aghbus.protocol.agh.limits import MAX_LIFETIME, REPLAY_AGE
from aghbus.protocol.agh.receive import Receiver, StoredState, decide
from tests.support.wire import CHANNEL, JOINED, NOW, WORKSPACE, A, B, say


def epoch(restored: int) -> Restored:
    """Restored at that Unix second."""
    return Restored("5b1f", 1000 * restored - 60_000, 1000 * restored)


def effects(envelope: Envelope, restored: int, **state: Any) -> set[type]:
    receiver = Receiver(self_id=B, now=NOW, mint=lambda: "msg_auto", channels=JOINED, restored=epoch(restored))
    return {type(effect) for effect in decide(envelope, StoredState(**state), receiver)}


@pytest.mark.parametrize(("restored", "held"), [(NOW, True), (NOW - REPLAY_AGE, True), (NOW - REPLAY_AGE - 1, False)])
def test_an_opening_is_held_as_long_as_a_clock_may_be_wrong(restored: int, held: bool) -> None:
    found = effects(say(), restored)
    assert Open in found
    assert (Hold in found, Deliver in found) == (held, not held)


def test_only_openings_are_held() -> None:
    assert Deliver in effects(say(id="msg_2"), NOW, work=opened_by(say()))
    assert Deliver in effects(say(work_id=...), NOW)
    assert not {Hold, Deliver} & effects(say(), NOW, duplicate=True)


def test_the_notice_of_a_hold_changes_no_work_and_opens_none() -> None:
    receiver = Receiver(self_id=B, now=NOW, mint=lambda: "msg_auto", channels=JOINED, restored=epoch(NOW))
    for opening in (say(), say(surface="direct", thread_id=..., direct_id=direct_id(WORKSPACE, CHANNEL, A, B))):
        (queued,) = (one for one in decide(opening, StoredState(), receiver) if type(one) is Queue)
        notice = queued.envelope
        assert (notice.kind, notice.to, notice.container) == ("say", opening.sender, opening.container)
        assert reason_in(notice.id) == "release"
        initiator = Receiver(self_id=A, now=NOW, mint=lambda: "msg_auto", channels=JOINED)
        told = decide(notice, StoredState(work=opened_by(opening)), initiator)
        (stored,) = (one.verdict for one in told if type(one) is StoreEnvelope)
        assert stored is not None and (stored.outcome, stored.state) == ("unchanged", "submitted")
        assert Open not in {type(one) for one in decide(notice, StoredState(), initiator)}


def test_an_epoch_matters_while_a_message_from_before_it_can_be_fresh() -> None:
    for restored in (NOW, NOW + 1):
        last_fresh = restored + REPLAY_AGE + MAX_LIFETIME
        assert epoch(restored).matters(1000 * last_fresh + 999)
        assert not any(epoch(restored).matters(1000 * (last_fresh + later)) for later in (1, 2))


def test_an_announced_epoch_is_read_back() -> None:
    assert restored_in(epoch(NOW).extension()) == epoch(NOW)


@pytest.mark.parametrize(
    "value",
    [None, True, "x", [], {}, {"epoch": "5b1f", "backup_ms": 1}, {"epoch": "X\n", "backup_ms": 1, "restored_ms": 2}]
    + [{"epoch": "5b1f", "backup_ms": 1, "restored_ms": bad} for bad in (-1, 2**53 + 1, 1.5, "2", None)],
)
def test_any_other_value_announces_nothing(value: Any) -> None:
    assert restored_in({RESTORED_KEY: value}) is None
