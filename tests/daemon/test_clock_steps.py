"""What a step of the wall clock moves, what it does not, and what is done again when its transaction fails."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.daemon.base.clock import Clock, arm
from aghbus.daemon.broker.embedded import BrokerError
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.nats.link import Link
from aghbus.daemon.nats.options import NatsOptions
from aghbus.daemon.state.clock_steps import STEP_MS
from aghbus.daemon.state.context import Core
from aghbus.daemon.state.presence import Roster
from aghbus.protocol.bodies import PeerCard
from aghbus.store.engine.database import Store
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import inbox
from tests.support.makers import receive, rows, say

DAY_MS = 86_400_000


class SetClock(Clock):
    """A wall clock that the test sets, and a steady one that it moves."""

    def __init__(self) -> None:
        self.wrong_ms = 0
        self.elapsed = 0.0

    def millis(self) -> int:
        return super().millis() + self.wrong_ms

    def monotonic(self) -> float:
        return super().monotonic() + self.elapsed


async def _nowhere() -> NatsOptions:
    raise BrokerError("resolve", "this test has no broker", "")


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def core(tmp_path: Path, clock: SetClock) -> AsyncIterator[Core]:
    store = await Store.open(tmp_path / "store.db", synchronous="normal")
    settings = Settings(name="us", peer_id="us")
    yield Core(settings, clock, store, Link(_nowhere, name="test"), Roster(30.0), 0)
    await store.close()


async def leased_until(core: Core) -> int:
    ((until,),) = await rows(core.store, "SELECT lease_until_ms FROM inbox WHERE state = 'leased'")
    return int(until)


async def lease(core: Core) -> int:
    """One message of the inbox, leased for a minute; until when."""
    await receive(core.store, say())
    now_ms = core.clock.millis()
    await core.store.write(lambda tx: inbox.lease_next(tx, now_ms, 60_000, "lease_1"))
    return await leased_until(core)


@pytest.mark.parametrize("step", [3_600_000, -3_600_000, STEP_MS + 50, -STEP_MS - 50])
async def test_a_step_moves_a_lease_by_as_much_once(core: Core, clock: SetClock, step: int) -> None:
    before = await lease(core)
    clock.wrong_ms = step
    for _ in range(3):
        await core.store.write(core.steps.settle)
    assert abs(await leased_until(core) - before - step) <= 2  # milliseconds, of rounding
    assert core.counters["clock.steps"] == 1
    assert core.counters.problems(clock.monotonic())


async def test_what_a_time_service_slews_is_no_step(core: Core, clock: SetClock) -> None:
    before = await lease(core)
    for _ in range(20):
        clock.wrong_ms += STEP_MS // 4
        await core.store.write(core.steps.settle)
    assert await leased_until(core) == before
    assert core.counters["clock.steps"] == 0


async def test_a_transaction_that_fails_leaves_the_step_for_the_next(core: Core, clock: SetClock) -> None:
    before = await lease(core)
    clock.wrong_ms = 7_200_000

    def settle_and_fail(tx: Transaction) -> None:
        core.steps.settle(tx)
        raise RuntimeError("after it")

    with pytest.raises(RuntimeError):
        await core.store.write(settle_and_fail)
    assert await leased_until(core) == before
    assert core.counters["clock.steps"] == 0
    await core.store.write(core.steps.settle)
    assert abs(await leased_until(core) - before - 7_200_000) <= 2


async def test_a_step_forward_is_believed_after_a_day(core: Core, clock: SetClock) -> None:
    true_ms = clock.millis()
    clock.wrong_ms = 10 * DAY_MS
    await core.store.write(core.steps.settle)
    assert abs(core.steps.prudent_millis() - true_ms) < 60_000
    clock.elapsed = 86_400.0 - 60
    assert core.steps.prudent_millis() < true_ms + DAY_MS
    clock.elapsed = 86_400.0 + 1
    assert core.steps.prudent_millis() >= true_ms + 10 * DAY_MS


async def test_forward_and_back_is_as_if_nothing_was(core: Core, clock: SetClock) -> None:
    for wrong in (5 * DAY_MS, 0):
        clock.wrong_ms = wrong
        await core.store.write(core.steps.settle)
    assert abs(core.steps.prudent_millis() - clock.millis()) <= 2


async def test_a_step_back_never_makes_the_prudent_time_later_than_now(core: Core, clock: SetClock) -> None:
    clock.wrong_ms = -5 * DAY_MS
    await core.store.write(core.steps.settle)
    assert core.steps.prudent_millis() <= clock.millis()


async def test_presence_is_as_old_as_before(core: Core, clock: SetClock) -> None:
    seen = core.roster.heard("ws_test", "builders", PeerCard(peer_id="bob"), "unverified", clock.millis())
    assert core.roster.presence(seen, clock.millis()) == "active"
    clock.wrong_ms = -9 * DAY_MS
    await core.store.write(core.steps.settle)
    (peer,) = core.roster.all()
    assert core.roster.presence(peer, clock.millis()) == "active"
    assert core.roster.presence(peer, clock.millis() + 61_000) == "expired"


@pytest.mark.parametrize("step", [3_600_000, -3_600_000])
async def test_who_is_heard_before_the_step_is_noticed_is_not_active_for_hours(
    core: Core, clock: SetClock, step: int
) -> None:
    clock.wrong_ms = step
    core.roster.heard("ws_test", "builders", PeerCard(peer_id="bob"), "unverified", clock.millis())
    await core.store.write(core.steps.settle)
    (peer,) = core.roster.all()
    assert core.roster.presence(peer, clock.millis() + 61_000) == "expired"


class At(Clock):
    """A wall clock that stands."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def millis(self) -> int:
        return self._now_ms


@given(st.integers(1_700_000_000_000, 1_900_000_000_000), st.integers(1_000, 604_800_000))
def test_nothing_expires_earlier_than_it_was_asked_to_nor_a_second_later(now_ms: int, life_ms: int) -> None:
    expires_ms = 1000 * At(now_ms).expiry(life_ms / 1000)
    assert now_ms + life_ms - 1 <= expires_ms < now_ms + life_ms + 1000  # the millisecond is of floating point


def test_the_test_switch_is_off_unless_it_is_named(tmp_path: Path) -> None:
    offset = tmp_path / "offset"
    offset.write_text("3600")
    true = Clock().seconds()
    arm({"AGHD_CLOCK_OFFSET_FILE": str(offset)})
    try:
        assert 3600 <= Clock().seconds() - true < 3660
        offset.write_text("being writ")
        assert Clock().seconds() - true < 60
    finally:
        arm({})
    offset.write_text("3600")
    assert Clock().seconds() - true < 60
