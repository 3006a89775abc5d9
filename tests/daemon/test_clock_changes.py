"""A step of the wall clock shifts due times and presence, once, and again after a failed transaction."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.daemon.base.clock import Clock, arm, expiry
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.state.clock_changes import STEP_MS
from aghbus.daemon.wiring import DaemonParts
from aghbus.protocol.agh.bodies import PeerCard
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import inbox
from tests.support.makers import receive, rows, say
from tests.support.wiring import daemon_context, daemon_parts

DAY_MS = 86_400_000


class SetClock(Clock):
    """A wall clock that the test sets, time that passes only when it says so, and reboots."""

    def __init__(self) -> None:
        self.began_ms, self.began_steady_ms = super().millis(), super().steady_millis()
        self.wrong_ms = 0
        self.elapsed = 0.0
        self.boot_id = "boot 1"
        self.booted_ms = 0

    def millis(self) -> int:
        return self.began_ms + self.wrong_ms + int(1000 * self.elapsed)

    def steady_millis(self) -> int:
        return self.began_steady_ms + int(1000 * self.elapsed) - self.booted_ms

    def monotonic(self) -> float:
        return super().monotonic() + self.elapsed

    def boot(self) -> str:
        return self.boot_id

    def reboot(self, boot_id: str) -> None:
        self.boot_id, self.booted_ms = boot_id, self.booted_ms + self.steady_millis()


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def parts(tmp_path: Path, clock: SetClock) -> AsyncIterator[DaemonParts]:
    store = await Store.open(tmp_path / "store.db", synchronous="normal")
    yield daemon_parts(daemon_context(Settings(name="us", peer_id="us"), clock), store)
    await store.close()


async def leased_until(parts: DaemonParts) -> int:
    ((until,),) = await rows(parts.store, "SELECT lease_until_ms FROM inbox WHERE state = 'leased'")
    return int(until)


async def lease(parts: DaemonParts) -> int:
    """One message of the inbox, leased for a minute; until when."""
    await receive(parts.store, say())
    now_ms = parts.clock.millis()
    await parts.store.write(lambda tx: inbox.lease_next(tx, now_ms, 60_000, "lease_1"))
    return await leased_until(parts)


@pytest.mark.parametrize("step", [3_600_000, -3_600_000, STEP_MS + 50, -STEP_MS - 50])
async def test_a_step_shifts_a_lease_once_by_the_same_amount(parts: DaemonParts, clock: SetClock, step: int) -> None:
    before = await lease(parts)
    clock.wrong_ms = step
    for _ in range(3):
        await parts.store.write(parts.clock_changes.now_after_clock_check)
    assert await leased_until(parts) == before + step
    assert parts.counters["clock.changes"] == 1
    assert parts.counters.problems(clock.monotonic())


async def test_slewing_by_a_time_service_is_not_a_step(parts: DaemonParts, clock: SetClock) -> None:
    before = await lease(parts)
    for _ in range(20):
        clock.wrong_ms += STEP_MS // 4
        await parts.store.write(parts.clock_changes.now_after_clock_check)
    assert await leased_until(parts) == before
    assert parts.counters["clock.changes"] == 0


async def test_a_transaction_that_fails_leaves_the_step_for_the_next(parts: DaemonParts, clock: SetClock) -> None:
    before = await lease(parts)
    clock.wrong_ms = 7_200_000

    def settle_and_fail(tx: Transaction) -> None:
        parts.clock_changes.now_after_clock_check(tx)
        raise RuntimeError("after it")

    with pytest.raises(RuntimeError):
        await parts.store.write(settle_and_fail)
    assert await leased_until(parts) == before
    assert parts.counters["clock.changes"] == 0
    await parts.store.write(parts.clock_changes.now_after_clock_check)
    assert await leased_until(parts) == before + 7_200_000


async def test_retention_uses_a_step_forward_after_a_day(parts: DaemonParts, clock: SetClock) -> None:
    true_ms = clock.millis()
    clock.wrong_ms = 10 * DAY_MS
    await parts.store.write(parts.clock_changes.now_after_clock_check)
    assert abs(parts.clock_changes.retention_now_ms() - true_ms) < 60_000
    clock.elapsed = 86_400.0 - 60
    assert parts.clock_changes.retention_now_ms() < true_ms + DAY_MS
    clock.elapsed = 86_400.0 + 1
    assert parts.clock_changes.retention_now_ms() >= true_ms + 11 * DAY_MS


def restarted(parts: DaemonParts) -> DaemonParts:
    """The daemon of the next run, over the same store."""
    return daemon_parts(daemon_context(parts.settings.current, parts.clock), parts.store)


def ahead(parts: DaemonParts) -> list[str]:
    problems = parts.counters.problems(parts.clock.monotonic())
    return [problem for problem in problems if "the wall clock jumped forward" in problem]


async def test_clock_change_in_downtime_is_reported_and_ignored_one_day(parts: DaemonParts, clock: SetClock) -> None:
    await parts.clock_changes.resume()
    clock.wrong_ms, clock.elapsed = 2 * DAY_MS, 60.0
    true_ms = clock.millis() - 2 * DAY_MS
    parts = restarted(parts)
    await parts.clock_changes.resume()
    assert abs(parts.clock_changes.retention_now_ms() - true_ms) < 60_000
    assert "48.0 h" in ahead(parts)[0]
    clock.elapsed += 7_200
    parts = restarted(parts)  # once more, with the same clock
    await parts.clock_changes.resume()
    assert abs(parts.clock_changes.retention_now_ms() - true_ms - 7_200_000) < 60_000
    assert "another 22.0 h" in ahead(parts)[0]
    clock.wrong_ms = 0
    parts = restarted(parts)
    await parts.clock_changes.resume()
    assert abs(parts.clock_changes.retention_now_ms() - true_ms - 7_200_000) < 60_000
    assert ahead(parts) == []


async def test_time_that_passes_while_the_daemon_is_down_is_not_a_step(parts: DaemonParts, clock: SetClock) -> None:
    await parts.clock_changes.resume()
    before = await lease(parts)
    clock.elapsed = 5 * 86_400.0
    parts = restarted(parts)
    await parts.clock_changes.resume()
    assert parts.clock_changes.retention_now_ms() == clock.millis()
    assert await leased_until(parts) == before
    assert ahead(parts) == []


@pytest.mark.parametrize("step", [3_600_000, -3_600_000])
async def test_a_step_while_the_daemon_was_down_shifts_a_lease_once(
    parts: DaemonParts, clock: SetClock, step: int
) -> None:
    await parts.clock_changes.resume()
    before = await lease(parts)
    clock.wrong_ms = step
    for _ in range(2):
        parts = restarted(parts)
        await parts.clock_changes.resume()
        assert await leased_until(parts) == before + step


async def test_retention_ignores_machine_off_time_for_a_day(parts: DaemonParts, clock: SetClock) -> None:
    await parts.clock_changes.resume()
    before = await lease(parts)
    true_ms = clock.millis()
    clock.wrong_ms = 2 * DAY_MS
    clock.reboot("boot 2")
    clock.elapsed = 300.0
    parts = restarted(parts)
    await parts.clock_changes.resume()
    assert abs(parts.clock_changes.retention_now_ms() - true_ms - 300_000) < 60_000
    assert await leased_until(parts) == before  # nothing tells a step from a machine that was off
    assert "48.0 h" in ahead(parts)[0]
    clock.reboot("boot 3")
    clock.elapsed = 600.0
    parts = restarted(parts)
    await parts.clock_changes.resume()
    assert abs(parts.clock_changes.retention_now_ms() - true_ms - 600_000) < 60_000
    clock.elapsed += 86_400
    assert abs(parts.clock_changes.retention_now_ms() - clock.millis()) < 60_000


async def test_a_step_forward_and_back_cancels_out(parts: DaemonParts, clock: SetClock) -> None:
    for wrong in (5 * DAY_MS, 0):
        clock.wrong_ms = wrong
        await parts.store.write(parts.clock_changes.now_after_clock_check)
    assert parts.clock_changes.retention_now_ms() == clock.millis()


async def test_a_step_back_never_makes_the_retention_time_later_than_now(parts: DaemonParts, clock: SetClock) -> None:
    clock.wrong_ms = -5 * DAY_MS
    await parts.store.write(parts.clock_changes.now_after_clock_check)
    assert parts.clock_changes.retention_now_ms() <= clock.millis()


async def test_a_step_shifts_presence(parts: DaemonParts, clock: SetClock) -> None:
    seen = parts.presence.observe("ws_test", "builders", PeerCard(peer_id="bob"), "unverified", clock.millis())
    assert parts.presence.of(seen, clock.millis()) == "active"
    clock.wrong_ms = -9 * DAY_MS
    await parts.store.write(parts.clock_changes.now_after_clock_check)
    (peer,) = parts.presence.all()
    assert parts.presence.of(peer, clock.millis()) == "active"
    assert parts.presence.of(peer, clock.millis() + 61_000) == "expired"


@pytest.mark.parametrize("step", [3_600_000, -3_600_000])
async def test_peer_seen_before_clock_change_is_detected_expires_on_time(
    parts: DaemonParts, clock: SetClock, step: int
) -> None:
    clock.wrong_ms = step
    parts.presence.observe("ws_test", "builders", PeerCard(peer_id="bob"), "unverified", clock.millis())
    await parts.store.write(parts.clock_changes.now_after_clock_check)
    (peer,) = parts.presence.all()
    assert parts.presence.of(peer, clock.millis() + 61_000) == "expired"


@given(st.integers(1_700_000_000_000, 1_900_000_000_000), st.integers(1_000, 604_800_000))
def test_expiry_rounds_the_lifetime_up_by_at_most_a_second(now_ms: int, life_ms: int) -> None:
    expires_ms = 1000 * expiry(now_ms, life_ms / 1000)
    assert now_ms + life_ms - 1 <= expires_ms < now_ms + life_ms + 1000  # the millisecond is of floating point


def test_the_clock_offset_is_off_unless_its_variable_is_set(tmp_path: Path) -> None:
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
