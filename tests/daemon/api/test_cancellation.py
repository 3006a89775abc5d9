"""A request that waits in its own task, until an event cancels the wait."""

import asyncio
from typing import Literal

import pytest

from aghbus.daemon.api.http import cancellation
from aghbus.daemon.api.http.cancellation import CancelScope


class Over(Exception):
    """What happened meanwhile."""


class WatchedEvent(asyncio.Event):
    """An event that records when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self.watched.set()
        return await super().wait()


async def _waits(event: asyncio.Event, answer: "asyncio.Future[str]") -> str:
    scope = CancelScope()
    scope.when(event.wait, Over)
    with scope:
        return await answer


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "SOON", 0)


@pytest.mark.parametrize("soon", [0, 0.01])
@pytest.mark.parametrize("before", [True, False])
async def test_an_event_ends_the_wait(monkeypatch: pytest.MonkeyPatch, soon: float, before: bool) -> None:
    monkeypatch.setattr(cancellation, "SOON", soon)
    event, answer = WatchedEvent(), asyncio.get_running_loop().create_future()
    if before:
        event.set()
    task = asyncio.create_task(_waits(event, answer))
    await event.watched.wait()
    event.set()
    with pytest.raises(Over):
        await task
    assert answer.cancelled()
    assert task.cancelling() == 0


async def test_a_short_wait_leaves_no_watching_task() -> None:
    event, answer = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(_waits(event, answer))
    await asyncio.sleep(0)
    answer.set_result("here")
    await asyncio.sleep(0)
    assert task.done()
    assert task.result() == "here"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_result_before_the_cancellation_is_kept() -> None:
    """The event is over, its watch too, and the waiting task has the answer: it must not be cancelled while it goes out."""
    event, answer = WatchedEvent(), asyncio.get_running_loop().create_future()

    async def answers() -> str:
        said = await _waits(event, answer)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return said

    task = asyncio.create_task(answers())
    await event.watched.wait()
    answer.set_result("here")
    event.set()
    assert await task == "here"


async def test_a_cancellation_from_outside_is_passed_on() -> None:
    event, answer = WatchedEvent(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(_waits(event, answer))
    await event.watched.wait()
    event.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
