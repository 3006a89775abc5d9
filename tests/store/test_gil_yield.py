"""A busy event loop yields the interpreter lock to a thread that is late; an idle one only now and then."""

import asyncio

import pytest

from aghbus.store.engine import gil_yield as handover
from aghbus.store.engine.gil_yield import MAX_SKIPPED, STARVED_SECONDS, yield_gil_while


class Thread:
    """In place of the module time: at each look the loop's thread has computed for `share` of the time."""

    def __init__(self, share: float, looks: int) -> None:
        self.share = share
        self.left = looks + 1  # the first is where it begins
        self.used = 0.0
        self.slept = 0
        self.done = asyncio.Event()

    def thread_time(self) -> float:
        self.left -= 1
        if self.left <= 0:
            self.done.set()
        self.used += self.share * STARVED_SECONDS
        return self.used

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept += 1


@pytest.mark.parametrize(("share", "rooms"), [(0.9, 4 * (MAX_SKIPPED + 1)), (0.1, 4)])
async def test_a_busy_loop_yields_the_gil(monkeypatch: pytest.MonkeyPatch, share: float, rooms: int) -> None:
    thread = Thread(share, looks=4 * (MAX_SKIPPED + 1))
    monkeypatch.setattr(handover, "time", thread)
    await yield_gil_while(thread.done.wait())
    assert thread.slept == rooms


async def test_fast_work_needs_no_yield(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = Thread(0.9, looks=1)
    monkeypatch.setattr(handover, "time", thread)
    await yield_gil_while(asyncio.sleep(0))
    assert thread.slept == 0
