"""Messages that are held back: each names a predecessor that has not come (docs/adr/0009)."""

from collections import defaultdict
from collections.abc import Container, Iterator
from heapq import nlargest
from typing import Final, NamedTuple

from aghbus.daemon.base.clock import Clock
from aghbus.protocol.agh.delivery.order import predecessor_of
from aghbus.protocol.agh.envelope import Envelope
from aghbus.store.engine.backup.epoch import spell

MAX_HELD: Final = 1_024
"""Messages that are remembered; of more, the oldest are not shown."""
_SHOWN_AFTER: Final = 5.0  # seconds: after a loss the retry of the predecessor ends it sooner
_SENDERS: Final = 5  # with a sentence of their own


class _Held(NamedTuple):
    sender: str
    work_id: str | None
    message_id: str
    after: str
    until: int  # Unix second from which on it is taken without its predecessor, or is not fresh any more
    since: float  # monotonic second

    def sentence(self, count: int) -> str:
        what = f"1 message of {self.sender} is" if count == 1 else f"{count} messages of {self.sender} are"
        until = spell(1000 * self.until)
        return f"{what} held back: {self.message_id} until {self.after} has come, at the latest until {until}"


class HeldBack:
    """What is held back. Nothing of it is stored: its sender repeats it."""

    def __init__(self, clock: Clock, processed: Container[int]) -> None:
        """`processed` has the `dedup_key` of each message that was taken."""
        self._clock = clock
        self._processed = processed
        self._messages: dict[int, _Held] = {}  # by `dedup_key`

    def note(self, envelope: Envelope, key: int) -> None:
        """This message, whose `dedup_key` is `key`, was not taken, because of its predecessor."""
        after = predecessor_of(envelope)
        if after is None or key in self._messages:
            return
        if len(self._messages) >= MAX_HELD:
            del self._messages[next(iter(self._messages))]
        until = min(after.expires_at, envelope.fresh_until)
        self._messages[key] = _Held(
            envelope.sender, envelope.work_id, envelope.id, after.id, until, self._clock.monotonic()
        )

    def problems(self) -> Iterator[str]:
        """One sentence for each of the senders with the most messages that were held back for seconds."""
        now, shown_from = self._clock.seconds(), self._clock.monotonic() - _SHOWN_AFTER
        waiting = {key: one for key, one in self._messages.items() if key not in self._processed and one.until > now}
        self._messages = waiting
        found: defaultdict[str, list[_Held]] = defaultdict(list)
        for one in waiting.values():
            if one.since <= shown_from:
                found[one.sender].append(one)
        for of_sender in nlargest(_SENDERS, found.values(), key=len):
            yield of_sender[0].sentence(len(of_sender))

    def explain(self, message_id: str) -> str | None:
        """Why message `message_id`, which is not stored, was not taken; None if it is not held back."""
        return next((one.sentence(1) for one in self._messages.values() if one.message_id == message_id), None)

    def explain_work(self, work_id: str, sender: str) -> str | None:
        """Why a message of `sender` in the work was not taken; None if none is held back."""
        now = self._clock.seconds()
        waiting = (one for key, one in self._messages.items() if key not in self._processed and one.until > now)
        return next((one.sentence(1) for one in waiting if (one.work_id, one.sender) == (work_id, sender)), None)
