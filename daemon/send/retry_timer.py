"""The timer of the retry task: when the next retry is due, and from when on a pending message can be expired.

Under load thousands of messages wait for an answer, and nearly all are answered before their second try. So the retry task does
not query the store for each of them: it waits until the first is due, and looks for expired ones when the first can be expired.
"""

import asyncio


class RetryTimer:
    """Wakes the retry task. Its two times are lower bounds of the times in the store."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._triggered = False  # there is something to do before `next_check`
        self._next_check = float("inf")
        self.expires_from = float("-inf")  # Unix seconds: no pending message is expired before

    def trigger(self) -> None:
        """Wake the task now."""
        self._triggered = True
        self._event.set()

    def clear(self) -> None:
        """The task begins a check."""
        self._triggered = False
        self._event.clear()

    @property
    def next_check(self) -> float:
        """When the task checks without being triggered, in monotonic seconds."""
        return self._next_check

    async def wait(self) -> bool:
        """Wait for a change. True when triggered since `clear`; False when only `next_check` is earlier than before."""
        await self._event.wait()
        self._event.clear()
        return self._triggered

    def due_at(self, at: float) -> None:
        """A retry is committed for monotonic second `at`: the task checks then, unless it does so earlier anyway."""
        if at < self._next_check:
            self._next_check = at
            self._event.set()

    def check_at(self, at: float | None) -> None:
        """The task has seen all that is committed, and next checks at monotonic second `at`; None: only when triggered."""
        self._next_check = float("inf") if at is None else at

    def track(self, expires_at: int) -> None:
        """One more message is pending; it expires at Unix second `expires_at`."""
        self.expires_from = min(self.expires_from, expires_at)

    def seconds_to_expiry(self, now: float) -> float:
        """Seconds from Unix second `now` until a pending message may be expired; 0 when one may be already."""
        return max(0.0, self.expires_from - now)

    def may_have_expired(self, now: int) -> bool:
        """Whether a pending message may be expired at Unix second `now`."""
        return now >= self.expires_from

    def expired_from(self, expires_at: int | None) -> None:
        """Of all messages in the store, the first expires at Unix second `expires_at`; None: none is pending."""
        self.expires_from = float("inf") if expires_at is None else expires_at
