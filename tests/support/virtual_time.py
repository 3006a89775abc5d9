"""An event loop whose time goes on when nothing happens: minutes take milliseconds, and every run is the same."""

import asyncio
import random
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import count
from typing import Final, TypeVar, TypeVarTuple

from aghbus.daemon.base.clock import Clock

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
START: Final = 1_800_000_000  # Unix seconds
TURN: Final = 1e-4  # seconds that a turn of the loop takes


class _Selector(selectors.DefaultSelector):
    """Finds what has happened; waits for the store's threads only while it `waits`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.waits = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.waits or timeout is None:
            return super().select(timeout)
        found = super().select(0)
        self.now += TURN if found else max(timeout, TURN)
        return found


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time goes on when there is nothing to do, and that runs in place what threads would do."""

    def __init__(self) -> None:
        self.selector = _Selector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], T], *args: *Arguments
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class LoopClock(Clock):
    """The time of the loop; chances and ids that are the same in every run."""

    def __init__(self, loop: Loop, name: str) -> None:
        self._loop, self._name = loop, name
        self._numbers = count(1)
        self._random = random.Random(name)

    def millis(self) -> int:
        return int(1000 * (START + self._loop.time()))

    def steady_millis(self) -> int:
        return int(1000 * self._loop.time())

    def monotonic(self) -> float:
        return self._loop.time()

    def fraction(self) -> float:
        return self._random.random()

    def mint(self, prefix: str = "msg_", now_ms: int | None = None) -> str:
        return f"{prefix}{self._name}_{next(self._numbers)}"
