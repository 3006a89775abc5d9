"""Short coroutines in the background: sends that have to wait for the connection."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

MAX_TASKS: Final = 1_000
"""With a slow broker, a flood of questions gets no more answers at a time."""


class BackgroundTasks:
    """Keeps tasks alive until they end, and ends them with the daemon."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether MAX_TASKS are running, so that another answer should be dropped."""
        return len(self._tasks) >= MAX_TASKS

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the tasks, and cancel the rest."""
        tasks = set(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
