"""An unresponsive peer gets everything in order once it returns, however its return is noticed."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.send.unresponsive_peers import UnresponsivePeers
from aghbus.protocol.agh.identifiers import subject_for
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import outbox, retry
from aghbus.store.tables.outbox import Outgoing
from aghbus.store.tables.retry import RetrySchedule
from tests.support.makers import BOB, CHANNEL, US, WORKSPACE, say, sending
from tests.support.natsutil import wait_until
from tests.support.publishing import Hand, Wire, publishing, send

SUBJECT = subject_for(WORKSPACE, CHANNEL, BOB)
ELSEWHERE = subject_for(WORKSPACE, "another", BOB)
CEILING = 8.0


@pytest.mark.parametrize("acknowledges", [True, False])
@pytest.mark.parametrize("greets", [True, False])
@pytest.mark.parametrize("later", range(1, 9))
async def test_everything_arrives_in_order_whenever_the_peer_subscribes(
    tmp_path: Path, later: int, greets: bool, acknowledges: bool
) -> None:
    wire = Wire(acknowledges=acknowledges)
    async with publishing(tmp_path, wire) as (publisher, parts):
        seqs = await send(publisher, parts, 20)
        await wait_until(lambda: wire.copies > 20 and parts.counters["outbox.retried"], 30, "a try in vain of each")
        wire.from_copy = wire.copies + later
        if greets:
            wire.handing = lambda copy: (
                publisher.peer_seen(SUBJECT, BOB, joined=True) if copy == wire.from_copy else None
            )
        for _ in range(20):  # on and on, while it comes back
            seqs += await send(publisher, parts, 1)
        await wait_until(lambda: len(wire.got) == len(seqs), 60, "everything")
        assert wire.got == seqs


async def test_new_messages_do_not_overtake_retries_to_a_returned_peer(tmp_path: Path) -> None:
    wire = Wire()
    async with publishing(tmp_path, wire) as (publisher, parts):
        seqs = await send(publisher, parts, 10)
        await wait_until(lambda: parts.counters["outbox.retried"], 30, "a try in vain")
        more: list[asyncio.Task[list[int]]] = []

        def hand(copy: int) -> None:
            """Each of the first copies that it gets meets a new message."""
            if wire.from_copy <= copy < wire.from_copy + 10:
                more.append(asyncio.get_running_loop().create_task(send(publisher, parts, 1)))

        wire.handing = hand
        wire.from_copy = wire.copies
        publisher.peer_seen(SUBJECT, BOB, joined=True)
        await wait_until(lambda: len(wire.got) >= 20 and len(more) >= 10, 60, "everything")
        seqs += sorted(seq for new in await asyncio.gather(*more) for seq in new)
        assert wire.got == seqs


@pytest.mark.parametrize("later", range(4))
async def test_a_foreign_peer_that_subscribes_during_our_reconnection_gets_the_order(
    tmp_path: Path, later: int
) -> None:
    wire = Wire(acknowledges=False)
    async with publishing(tmp_path, wire) as (publisher, parts):
        seqs = await send(publisher, parts, 10)
        await wait_until(lambda: parts.counters["outbox.retried"], 30, "a try in vain")
        wire.from_copy = wire.copies + later
        publisher.link_up()
        seqs += await send(publisher, parts, 5)
        await wait_until(lambda: len(wire.got) == len(seqs), 30, "everything")
        assert wire.got == seqs


async def test_unanswered_messages_are_resent_before_new_on_reconnect(
    tmp_path: Path,
) -> None:
    wire = Wire()
    async with publishing(tmp_path, wire, retry_after=300) as (publisher, parts):
        seqs = await send(publisher, parts, 5)
        await wait_until(lambda: wire.copies >= 5, 30, "the first tries")
        await parts.store.probe()
        wire.from_copy = wire.copies
        publisher.link_up()
        seqs += await send(publisher, parts, 5)
        await wait_until(lambda: len(wire.got) == len(seqs), 30, "everything, long before a retry")
        assert wire.got == seqs


class SetDuring(Clock):
    """A wall clock that is set by `step_ms` before somebody reads it for the `at`-th time since `counting`."""

    def __init__(self, at: int, step_ms: int) -> None:
        self.counting = False
        self._left = at
        self._step_ms = step_ms

    def millis(self) -> int:
        if self.counting:
            self._left -= 1
        return super().millis() + (self._step_ms if self._left <= 0 else 0)


@pytest.mark.parametrize("step_ms", [-3 * 3_600_000, 10_000])
async def test_a_step_of_the_clock_at_any_moment_delays_no_retry(tmp_path: Path, step_ms: int) -> None:
    async def tries(at: int) -> None:
        clock, wire = SetDuring(at, step_ms), Wire()
        async with publishing(tmp_path / str(at), wire, clock) as (publisher, parts):
            await send(publisher, parts, 1)
            await wait_until(lambda: parts.counters["outbox.retried"], 15, "a first try in vain")
            clock.counting = True
            await wait_until(lambda: parts.counters["clock.changes"], 15, "the step to be noticed")
            before = parts.counters["outbox.retried"]
            what = f"further tries, a tenth of a second apart, with a clock set at reading {at}"
            await wait_until(lambda: parts.counters["outbox.retried"] >= before + 3, 15, what)
            assert parts.counters["clock.changes"] == 1

    await asyncio.gather(*map(tries, range(1, 31)))


# one step at a time


async def waiting(store: Store, clock: Hand, count: int, subject: str = SUBJECT) -> list[Outgoing]:
    """So many messages that were published once and wait for an answer, not due yet."""
    found: list[Outgoing] = []
    for _ in range(count):
        channel = CHANNEL if subject == SUBJECT else "another"

        def job(tx: Transaction) -> list[Outgoing]:
            envelope = say(sender=US, to=BOB, ts=clock.seconds(), channel=channel)  # noqa: B023 - awaited at once
            seq = sending(envelope)(tx).seq
            assert seq is not None
            retry.published(tx, [RetrySchedule(seq, clock.millis() + 10_000)], clock.millis())
            return retry.unanswered(tx, subject, seq + 1, 1000)[-1:]

        found += await store.write(job)
    return found


async def going(
    store: Store, clock: Hand, unresponsive: UnresponsivePeers, rows: list[Outgoing], back: frozenset[str] = frozenset()
) -> list[int]:
    """The sequences of what goes out in place of `rows`."""
    chosen = await store.write(lambda tx: unresponsive.in_order(tx, rows, back, CEILING, clock.millis()))
    return [row.seq for row in chosen]


def seqs_of(rows: list[Outgoing]) -> list[int]:
    return [row.seq for row in rows]


async def test_the_oldest_message_is_the_probe_and_then_everything_is_sent(store: Store) -> None:
    clock = Hand()
    unresponsive, rows = UnresponsivePeers(clock), await waiting(store, clock, 21)
    unresponsive.mark(SUBJECT)
    due = [*rows[:12], rows[20]]
    assert await going(store, clock, unresponsive, due) == [rows[0].seq]
    clock.now += 1  # the broker has not said that nobody listens
    assert await going(store, clock, unresponsive, due) == seqs_of(rows)
    assert await going(store, clock, unresponsive, due) == [rows[0].seq]
    assert await going(store, clock, unresponsive, [rows[20], rows[20]]) == []  # an answer that was asked for twice


async def test_after_a_stall_the_oldest_message_goes_out_first_too(store: Store) -> None:
    """Nothing has shown whether the subject has a subscriber, though the time for that has passed."""
    clock = Hand()
    unresponsive, rows = UnresponsivePeers(clock), await waiting(store, clock, 5)
    unresponsive.mark(SUBJECT)
    clock.now += 1
    assert await going(store, clock, unresponsive, rows[2:]) == [rows[0].seq]
    clock.now += 1
    assert await going(store, clock, unresponsive, rows) == seqs_of(rows)


async def test_without_subscriber_only_oldest_is_sent_but_all_attempts_count(
    store: Store,
) -> None:
    clock = Hand()
    unresponsive, rows = UnresponsivePeers(clock), await waiting(store, clock, 5)
    unresponsive.mark(SUBJECT)
    for _ in range(4):
        assert await going(store, clock, unresponsive, rows) == [rows[0].seq]
        unresponsive.no_subscriber(rows[0].seq)
        clock.now += CEILING + 1
    ((attempts,),) = await store.reader.execute_fetchall("SELECT attempts FROM outbox WHERE seq = ?", (rows[4].seq,))
    assert attempts == 1 + 3
    assert await going(store, clock, unresponsive, rows) == [rows[0].seq]
    clock.now += CEILING + 1
    assert await going(store, clock, unresponsive, rows) == seqs_of(rows)


async def test_a_channel_that_the_peer_has_left_does_not_block_another(store: Store) -> None:
    clock = Hand()
    unresponsive = UnresponsivePeers(clock)
    left, here = await waiting(store, clock, 2, ELSEWHERE), await waiting(store, clock, 2)
    unresponsive.mark(ELSEWHERE)
    assert await going(store, clock, unresponsive, [*left, *here]) == [left[0].seq, *seqs_of(here)]


async def test_returned_peer_gets_all_messages_in_order_once_all_are_due(store: Store) -> None:
    clock, returns = Hand(), list[float]()
    unresponsive = UnresponsivePeers(clock, lambda: returns.append(clock.now))
    rows = await waiting(store, clock, 6)
    unresponsive.mark(SUBJECT)
    await store.write(lambda tx: retry.hold_back(tx, rows[4].seq, clock.millis() - 5))  # due for longer than all others
    for _ in range(2):
        await store.write(lambda tx: unresponsive.answered(tx, SUBJECT))
        assert len(returns) == 1
    assert await going(store, clock, unresponsive, rows[5:]) == []  # was taken before the peer was received
    back = await store.write(lambda tx: unresponsive.expedite(tx, clock.millis()))
    assert back == {SUBJECT}
    first, second = await store.write(
        lambda tx: (retry.due(tx, clock.millis(), 3), retry.count_due(tx, clock.millis()))
    )
    assert (seqs_of(first), second) == (seqs_of(rows[:3]), 6)
    assert await going(store, clock, unresponsive, first, back) == seqs_of(first)
    unresponsive.clear(back)
    assert not unresponsive.affects(rows)


async def test_new_messages_to_a_silent_foreign_peer_do_not_wait(store: Store) -> None:
    """It has a subscriber, and need not answer: only repetitions wait."""
    clock = Hand()
    unresponsive, rows = UnresponsivePeers(clock), await waiting(store, clock, 3)
    new = msgspec.structs.replace(rows[2], attempts=0)
    unresponsive.mark(SUBJECT, acknowledges=False)
    assert not unresponsive.subjects[SUBJECT].holds
    assert await going(store, clock, unresponsive, [*rows[:2], new]) == [rows[0].seq, new.seq]
    unresponsive.unsubscribed(SUBJECT)
    assert unresponsive.subjects[SUBJECT].holds
    assert await going(store, clock, unresponsive, [new]) == [rows[0].seq]


async def test_an_absent_foreign_peer_gets_the_oldest_until_it_is_passed_on(store: Store) -> None:
    clock = Hand()
    unresponsive, rows = UnresponsivePeers(clock), await waiting(store, clock, 4)
    unresponsive.unsubscribed(SUBJECT)
    for due in (rows[3:], rows, rows[1:2]):
        clock.now += CEILING + 1
        assert await going(store, clock, unresponsive, due) == [rows[0].seq]
        unresponsive.unsubscribed(SUBJECT)
    assert not unresponsive.taken(rows[1].seq)
    assert unresponsive.taken(rows[0].seq) and not unresponsive.is_absent(SUBJECT)
    await store.write(lambda tx: retry.published(tx, [RetrySchedule(rows[0].seq, None)], clock.millis()))
    back = await store.write(lambda tx: unresponsive.expedite(tx, clock.millis()))
    assert back == {SUBJECT}
    assert seqs_of(await store.write(lambda tx: retry.due(tx, clock.millis(), 9))) == seqs_of(rows[1:])
    unresponsive.unsubscribed(SUBJECT)  # it has left in the middle
    unresponsive.clear(back)
    assert unresponsive.is_absent(SUBJECT)


async def test_an_answer_starts_the_backoff_of_the_other_messages_over(store: Store) -> None:
    clock = Hand()
    unresponsive = UnresponsivePeers(clock)
    rows, elsewhere = await waiting(store, clock, 2), await waiting(store, clock, 1, ELSEWHERE)
    tried = [RetrySchedule(row.seq, clock.millis() + 10_000) for row in [*rows, *elsewhere]]
    for _ in range(5):
        await store.write(lambda tx: retry.published(tx, tried, clock.millis()))
    unresponsive.mark(SUBJECT)
    await store.write(lambda tx: outbox.mark_answered(tx, rows[0].seq))
    await store.write(lambda tx: unresponsive.answered(tx, SUBJECT))
    attempts = await store.reader.execute_fetchall("SELECT attempts FROM outbox ORDER BY seq")
    assert [one for (one,) in attempts] == [6, 1, 6]


async def test_an_expedite_is_repeated_after_a_rollback(store: Store) -> None:
    clock = Hand()
    unresponsive, rows = UnresponsivePeers(clock), await waiting(store, clock, 2)
    unresponsive.peer_joined(SUBJECT)

    def fail(tx: Transaction) -> None:
        unresponsive.expedite(tx, clock.millis())
        raise RuntimeError("a job that fails")

    with pytest.raises(RuntimeError):
        await store.write(fail)
    unresponsive.clear([SUBJECT])
    assert unresponsive.affects(rows)
    await store.write(lambda tx: unresponsive.expedite(tx, clock.millis()))
    assert seqs_of(await store.write(lambda tx: retry.due(tx, clock.millis(), 10))) == seqs_of(rows)
