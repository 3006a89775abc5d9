"""What the process does now: the stacks of its tasks and threads, and a profile by samples. For operators (docs/operations.md)."""

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Final

from aghbus.daemon.receive.intake import ReceiveQueue
from aghbus.protocol.api.queries import ProfileQuery
from aghbus.protocol.api.status import ProfiledStack, ProfileResponse, Stack, StacksResponse

INTERVAL: Final = 0.005
"""Seconds between two samples: about a hundredth of a core while a profile is made."""
MAX_STACKS: Final = 1_000
"""Different stacks of one profile; the rarer ones are left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Diagnostics:
    """Looks into one process."""

    queue: ReceiveQueue

    async def stacks(self) -> StacksResponse:
        """Where each task and thread is now."""
        return self.stacks_now()

    def stacks_now(self) -> StacksResponse:
        """The same, in the event loop's thread."""
        tasks = [Stack(task.get_name(), [_place(frame) for frame in task.get_stack()]) for task in asyncio.all_tasks()]
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        threads = [
            Stack(names.get(ident, "ended"), [_place(frame) for frame in _outermost_first(frame)])
            for ident, frame in sys._current_frames().items()
        ]
        return StacksResponse(tasks=tasks, threads=threads, queues={"receive": self.queue.depth})

    async def profile(self, query: ProfileQuery) -> ProfileResponse:
        """Sample the stacks of all threads for some seconds."""
        counts, taken = await asyncio.to_thread(_samples, query.duration)
        stacks = [ProfiledStack(list(frames), count) for frames, count in counts.most_common(MAX_STACKS)]
        return ProfileResponse(seconds=query.duration, samples=taken, stacks=stacks)


def _samples(seconds: float) -> tuple[Counter[tuple[str, ...]], int]:
    """How often each stack was seen, below the name of its thread, and the number of looks."""
    counts: Counter[tuple[str, ...]] = Counter()
    own, end, taken = threading.get_ident(), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != own:
                counts[names.get(ident, "ended"), *(_place(one) for one in _outermost_first(frame))] += 1
        taken += 1
        time.sleep(INTERVAL)
    return counts, taken


def _outermost_first(frame: FrameType | None) -> Iterator[FrameType]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return reversed(frames)


def _place(frame: FrameType) -> str:
    """`daemon/node.py:120 start`: no values of variables, which may be text of peers."""
    code = frame.f_code
    return f"{_short(code.co_filename)}:{frame.f_lineno} {code.co_qualname}"


def _short(path: str) -> str:
    """A path without the folders of the installation."""
    return "/".join(path.split("/")[-3:])
