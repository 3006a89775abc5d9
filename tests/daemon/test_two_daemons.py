"""The faults that the model of two daemons has found, one by one (tests/support/daemon_net.py)."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from aghbus.protocol.agh.delivery.order import AFTER
from tests.support.daemon_net import DAY, LEASE, DaemonNet
from tests.support.promises import broken_promises


@pytest.fixture(params=["core", "stream"])
def net(request: pytest.FixtureRequest) -> Iterator[DaemonNet]:
    with closing(DaemonNet(flow=request.param == "stream")) as found:
        yield found


@pytest.fixture
def foreign() -> Iterator[DaemonNet]:
    with closing(DaemonNet(foreign=True)) as found:
        yield found


def faults(net: DaemonNet) -> set[str]:
    net.come_to_rest()
    return broken_promises(net)


def test_an_opening_refused_as_expired_is_not_receipted(net: DaemonNet) -> None:
    ops = net.peers["ops"]
    ops.life = 2
    opening = ops.say("worker", "work_x")
    net.pass_time(4)
    assert not faults(net)
    assert ops.rows("SELECT o.state FROM outbox AS o JOIN envelopes AS e USING (seq) WHERE msg_id = ?", opening.id) == [
        ("expired",)
    ]


def test_nothing_overtakes_after_an_expiry(net: DaemonNet) -> None:
    ops = net.peers["ops"]
    first = ops.say("worker")
    ops.life = 2
    ops.say("worker", "work_x")
    last = ops.say("worker")
    net.pass_time(4)
    for _ in range(20):  # copies of the first are lost, and what is said after it arrives
        net.wires["worker"] = [one for one in net.wires["worker"] if first.raw != one.message.data]
        net.arrive("worker")
        net.arrive("ops")
        net.pass_time(0.3)
    assert not faults(net)
    assert [row[0] for row in net.peers["worker"].rows("SELECT msg_id FROM envelopes WHERE kind = 'say'")] == [
        first.id,
        last.id,
    ]


def test_the_receipt_for_a_copy_waits_for_nothing() -> None:
    """It is published once, so nobody could say later that what was sent before it has expired."""
    with closing(DaemonNet(flow=True)) as net:
        ops, worker = net.peers["ops"], net.peers["worker"]
        worker.say("ops", "work_x")
        copy = net.wires["ops"][0]
        net.come_to_rest()
        ops.say("worker")
        ops.life = 1
        ops.say("worker")
        net.wires["ops"].append(copy)
        net.arrive("ops")
        net.pass_time(4)
        for _ in range(10):
            while net.wires["worker"]:
                net.arrive("worker")
            net.pass_time(1)
        assert not net.stored["worker"]
        assert not faults(net)


def test_no_work_is_opened_by_a_message_after_its_opening(net: DaemonNet) -> None:
    ops = net.peers["ops"]
    ops.life = 2
    ops.say("worker", "work_x", text="do nothing until I say so")
    ops.say("worker", "work_x", text="now")
    net.pass_time(4)
    assert not faults(net)
    assert net.peers["worker"].works == {}


@pytest.mark.parametrize("end", ["canceled", "rejected"])
def test_both_agents_are_told_of_ends_that_crossed(net: DaemonNet, end: str) -> None:
    ops, worker = net.peers["ops"], net.peers["worker"]
    ops.say("worker", "work_x")
    net.come_to_rest()
    ops.receipt("worker", "work_x", end, "busy")
    worker.trace("ops", "work_x", "completed")
    assert not faults(net)


def test_a_lost_lease_goes_before_the_later_messages(net: DaemonNet) -> None:
    ops, worker = net.peers["ops"], net.peers["worker"]
    sent = [ops.say("worker").id for _ in range(3)]
    for _ in range(6):
        net.arrive("worker")
        net.arrive("ops")
    first = worker.next()
    worker.kill()
    assert first is not None
    assert worker.next() is None, "the first is still leased"
    net.pass_time(LEASE)
    for message_id in sent:
        item = worker.next()
        assert item is not None
        assert item.message.id == message_id
        worker.ack(item)
    assert not faults(net)


@pytest.mark.parametrize("seconds", [0.5, 2, 6])
def test_a_foreign_peer_that_was_away_gets_everything_in_order(foreign: DaemonNet, seconds: float) -> None:
    ops, worker = foreign.peers["ops"], foreign.peers["worker"]
    foreign.leave("worker")
    sent = [ops.say("worker", "work_x").id for _ in range(5)]
    sent += [ops.say("worker").id, ops.receipt("worker", "work_x", "canceled").id]
    foreign.pass_time(seconds)
    foreign.come_back("worker")
    assert not faults(foreign)
    assert [envelope.id for _, envelope in worker.stored] == sent


def test_a_foreign_peer_opens_no_canceled_work(foreign: DaemonNet) -> None:
    ops, worker = foreign.peers["ops"], foreign.peers["worker"]
    foreign.leave("worker")
    ops.say("worker", "work_x")
    ops.receipt("worker", "work_x", "canceled")
    foreign.pass_time(2)
    foreign.come_back("worker")
    assert not faults(foreign)
    assert all(work.is_terminal for work in worker.works.values())


def test_a_copied_extension_withholds_no_foreign_message(foreign: DaemonNet) -> None:
    after = {"id": "msg_never_sent", "expires_at": foreign.now + DAY}
    foreign.peers["worker"].say("ops", ext={AFTER: after})
    assert not faults(foreign)
