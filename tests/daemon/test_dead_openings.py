"""An opening whose attempts are used up ends its work towards the initiator, whenever its daemon dies in between."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from aghbus.protocol.api.inbox import InboxAckRequest, InboxItem, InboxLeaseRequest, InboxNackRequest
from aghbus.protocol.api.queries import InboxQuery
from aghbus.protocol.base.errors import Refused
from aghbus.store.tables import inbox
from aghbus.store.tables.inbox import MAX_ATTEMPTS
from tests.support.daemon_net import LEASE, Daemon, DaemonNet

DEAD = InboxQuery(states=frozenset({"dead"}))


@pytest.fixture
def net() -> Iterator[DaemonNet]:
    with closing(DaemonNet()) as found:
        found.peers["ops"].say("worker", "work_x", text="do it")
        arrive(found)
        yield found


def arrive(net: DaemonNet) -> None:
    """What is on its way arrives, and what is sent because of it."""
    net.pass_time(0.1)
    while any(net.wires.values()):
        for name in net.wires:
            net.arrive(name)


def lease(worker: Daemon) -> InboxItem:
    item = worker.next()
    assert item is not None
    return item


def nack(worker: Daemon, item: InboxItem, error: str | None = None) -> InboxItem:
    return worker.net.run(worker.parts.inbox.nack(item.seq, InboxNackRequest(lease=item.lease, delay=0, error=error)))


def use_up(worker: Daemon, attempts: int = MAX_ATTEMPTS, error: str | None = None) -> InboxItem:
    """So many attempts, each of which the agent returns."""
    for _ in range(attempts):
        item = nack(worker, lease(worker), error)
    return item


def end_of(net: DaemonNet) -> tuple[str, dict[str, Any]]:
    """Kind and body of the message that ended the work at its initiator."""
    arrive(net)
    ops = net.peers["ops"]
    work = ops.work("work_x")
    assert work is not None
    assert work.state == "failed"
    ((kind, raw),) = ops.rows("SELECT kind, raw FROM envelopes WHERE msg_id = ?", work.terminal_id)
    return kind, json.loads(raw)["body"]


def dead(worker: Daemon) -> list[InboxItem]:
    return worker.net.run(worker.parts.inbox.list_items(DEAD), waits=True).items


def problems(worker: Daemon) -> list[str]:
    return worker.net.run(worker.parts.status.status(), waits=True).problems


def test_a_work_that_was_not_accepted_is_rejected_as_busy(net: DaemonNet) -> None:
    worker = net.peers["worker"]
    assert use_up(worker, error="no model here").state == "dead"
    kind, body = end_of(net)
    assert (kind, body["status"], body["reason_code"]) == ("receipt", "rejected", "busy")
    assert body["detail"] == "given up after 5 attempts: no model here"
    assert [item.state for item in dead(worker)] == ["dead"]  # for the operator
    assert worker.parts.counters["inbox.given_up"] == 1


def test_a_work_that_was_accepted_fails(net: DaemonNet) -> None:
    worker = net.peers["worker"]
    worker.receipt("ops", "work_x", "accepted")
    for _ in range(MAX_ATTEMPTS):  # each time the consumer dies
        lease(worker)
        net.pass_time(LEASE + 1)
    assert len(dead(worker)) == 1  # any look ends the lease
    kind, body = end_of(net)
    assert (kind, body) == ("trace", {"state": "failed", "message": "given up after 5 attempts: the lease expired"})


def test_the_last_lease_ends_without_any_consumer(net: DaemonNet) -> None:
    """Nobody leases or lists any more, but the daemon itself looks."""
    worker = net.peers["worker"]
    use_up(worker, MAX_ATTEMPTS - 1)
    lease(worker)
    net.pass_time(LEASE + 61)
    assert end_of(net)[1]["detail"] == "given up after 5 attempts: the lease expired"


def test_the_initiator_gets_the_end_in_its_inbox(net: DaemonNet) -> None:
    ops = net.peers["ops"]
    ops.net.run(ops.store.write(lambda tx: tx.db.execute("UPDATE works SET reactions = 'all'")))
    ops.kill()  # and reads them anew
    use_up(net.peers["worker"])
    end_of(net)
    item = ops.next()
    assert item is not None
    assert (item.message.kind, item.work_state) == ("receipt", "failed")


@pytest.mark.parametrize("error", ["", "x" * 500, "api_key=ghp_" + "a1B2" * 9])
def test_the_words_of_our_agent_are_sent_but_for_credentials(net: DaemonNet, error: str) -> None:
    use_up(net.peers["worker"], error=error)
    detail = end_of(net)[1]["detail"]
    assert detail.startswith("given up after 5 attempts")
    assert "ghp_" not in detail
    assert ("x" * 500 in detail) == ("x" * 500 in error)


def test_a_go_reference_gets_no_text_that_it_would_drop(net: DaemonNet, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = net.peers["worker"]
    monkeypatch.setattr(worker.parts.presence, "is_reference", lambda *_: True)
    use_up(worker, error="unexpected token: }")
    assert end_of(net)[1]["detail"] == "given up after 5 attempts: unexpected token: [REDACTED]"


def test_a_kill_between_the_death_and_the_end_loses_nothing(net: DaemonNet) -> None:
    worker = net.peers["worker"]
    worker.store.memory.inbox.on_dead = lambda _seq: None  # the daemon is killed before it notices
    use_up(worker)
    worker.kill()
    assert end_of(net)[1]["detail"] == "given up after 5 attempts"
    worker.kill()
    net.pass_time(70)
    steps = worker.rows("SELECT kind FROM envelopes WHERE direction = 'out' AND kind <> 'greet'")
    assert steps == [("receipt",)]  # once


def test_a_kill_between_the_end_and_its_arrival_loses_nothing(net: DaemonNet) -> None:
    worker = net.peers["worker"]
    use_up(worker)
    net.pass_time(0.1)
    net.crash("ops")  # with the receipt in flight
    net.crash("worker")
    net.pass_time(5)
    assert end_of(net)[1]["reason_code"] == "busy"


def test_a_worker_renews_its_last_lease_after_an_outage_of_the_daemon(net: DaemonNet) -> None:
    """It could not while the daemon was away, for longer than the lease."""
    worker = net.peers["worker"]
    use_up(worker, MAX_ATTEMPTS - 1)
    item = lease(worker)
    worker.store.memory.inbox.on_dead = lambda _seq: None
    worker.stop()
    net.pass_time(10 * LEASE)
    worker.start()
    net.pass_time(30)
    renewed = InboxLeaseRequest(lease=item.lease or "", visibility=LEASE)
    assert net.run(worker.parts.inbox.lease(item.seq, renewed)).attempts == MAX_ATTEMPTS
    worker.trace("ops", "work_x", "completed")
    arrive(net)
    assert net.work("ops", "work_x").state == "completed"  # type: ignore[union-attr]
    assert not dead(worker)


def test_the_last_lease_of_a_worker_that_died_with_the_daemon_ends_all_the_same(net: DaemonNet) -> None:
    worker = net.peers["worker"]
    use_up(worker, MAX_ATTEMPTS - 1)
    lease(worker)
    worker.kill()
    net.pass_time(125)
    assert end_of(net)[1]["reason_code"] == "busy"


def test_what_else_is_dead_ends_no_work(net: DaemonNet) -> None:
    """Neither a message within the work, nor an opening that is held since a restore."""
    ops, worker = net.peers["ops"], net.peers["worker"]
    worker.receipt("ops", "work_x", "accepted")
    item = lease(worker)
    worker.ack(item)
    ops.say("worker", "work_x", text="more")
    arrive(net)
    assert use_up(worker).state == "dead"
    net.run(worker.store.write(lambda tx: inbox.hold(tx, item.seq, 0)))
    worker.kill()
    net.pass_time(70)
    arrive(net)
    assert net.work("ops", "work_x").state == "working"  # type: ignore[union-attr]
    assert not problems(worker)


def test_an_error_of_the_agent_that_looks_like_a_hold_is_none(net: DaemonNet) -> None:
    use_up(net.peers["worker"], error="held: up in traffic")
    assert end_of(net)[1]["detail"] == "given up after 5 attempts: held: up in traffic"


def test_many_die_at_once(net: DaemonNet) -> None:
    ops, worker = net.peers["ops"], net.peers["worker"]
    worker.ack(lease(worker))
    for number in range(250):
        ops.say("worker", f"work_{number}", container=f"thread_number{number}")
    arrive(net)
    for _ in range(MAX_ATTEMPTS):
        while worker.next() is not None:
            pass
        net.pass_time(LEASE + 1)
    net.pass_time(1)
    arrive(net)
    states = [work.state for name, work in ops.works.items() if name != "work_x"]
    assert states == ["failed"] * 250


def test_the_operator_sees_dead_openings_and_removes_them(net: DaemonNet) -> None:
    worker = net.peers["worker"]
    assert problems(worker) == []
    seq = use_up(worker).seq
    end_of(net)
    (problem,) = problems(worker)
    assert "given up after too many attempts, as their initiators were told: 1;" in problem
    assert "`aghctl inbox list --state dead`" in problem
    with pytest.raises(Refused) as refused:
        net.run(worker.parts.inbox.requeue(seq))
    assert refused.value.error_code == "work_closed"
    assert "inbox ack" in refused.value.hint
    net.run(worker.parts.inbox.ack(seq, InboxAckRequest()))
    assert problems(worker) == []
    assert not dead(worker)
