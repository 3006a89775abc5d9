"""What the publisher knows of its waiting messages without asking the store: when the next try is due, and what can be stale.

Under load thousands of messages wait for an answer, nearly all of which comes long before a second try. So the task that tries
again does not look for each of them, but when the first is due, and looks for what is stale only once the first of them can be.
"""

import asyncio


class Outlook:
    """A bell for the task that tries again, and two times: bounds from below of what the store would say."""

    def __init__(self) -> None:
        self._bell = asyncio.Event()
        self._now = False  # there is something to do before the time of the next look
        self._looks_at = float("inf")  # monotonic: when the task looks by itself
        self._stale_from = float("-inf")  # Unix seconds: nothing that waits is stale before

    def ring(self) -> None:
        """There is something to do now."""
        self._now = True
        self._bell.set()

    def clear(self) -> None:
        """The task begins a look."""
        self._now = False
        self._bell.clear()

    @property
    def next_look(self) -> float:
        """When the task has to look by itself (monotonic seconds)."""
        return self._looks_at

    async def rung(self) -> bool:
        """True when the bell was rung since `clear`; False when only `next_look` is sooner than it was."""
        await self._bell.wait()
        self._bell.clear()
        return self._now

    def due_at(self, at: float) -> None:
        """Something is committed as due `at` (monotonic seconds): the task looks then, unless it does so before anyway."""
        if at < self._looks_at:
            self._looks_at = at
            self._bell.set()

    def looks_at(self, at: float | None) -> None:
        """The task has seen all that is committed, and will look `at` (monotonic seconds) by itself; None: for nothing."""
        self._looks_at = float("inf") if at is None else at

    def waits(self, expires_at: int) -> None:
        """One more message waits, which is stale from Unix second `expires_at` on."""
        self._stale_from = min(self._stale_from, expires_at)

    def seconds_to_stale(self, now: float) -> float:
        """From Unix second `now` until something that waits may be stale; 0 when it may be already."""
        return max(0.0, self._stale_from - now)

    def some_stale(self, now: int) -> bool:
        """Whether something that waits may be stale at Unix second `now`."""
        return now >= self._stale_from

    def stale_from(self, expires_at: int | None) -> None:
        """Of all that the store has, the first is stale from Unix second `expires_at` on; None: nothing waits."""
        self._stale_from = float("inf") if expires_at is None else expires_at
