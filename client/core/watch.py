"""One event stream for everything that a client waits for."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from aghbus.client.api import FIRST_PAUSE, LAST_PAUSE
from aghbus.client.errors import ClientError
from aghbus.client.events import arrivals
from aghbus.client.http import Incoming
from aghbus.protocol.agh.lifecycle import STANDSTILL
from aghbus.protocol.api.messages import Event
from aghbus.protocol.base.backoff import Backoff

LINGER: Final = 5.0
"""Seconds for which the stream is kept after the last wait, at least: it ends with the daemon's next event or comment."""
LOOK: Final = 60.0
"""Seconds without an event after which one that waits looks all the same."""
REMEMBERED: Final = 1_024
"""Works whose latest event that matters is known to those that begin to wait after it came."""
ALL: Final = ""
"""In place of a work: every conversation."""
_NO_WORK: Final = "-"

Opening = Callable[[int | None, int], Awaitable[tuple[Incoming, int]]]
"""Opens a stream of all conversations, after a sequence or from now on, for a client that carries out so many works at a time.
Returns it and where it begins. Raises ClientError."""
Listener = Callable[[Event | None], object]
"""Gets each event, or None when some may be missing: it has to look, and what happens after that is an event again."""


class Signal:
    """Set once or repeatedly by any thread, awaited by one."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """End the current or the next `wait`."""
        self._event.set()

    async def wait(self, timeout: float) -> None:
        """Wait until the signal is set, at most `timeout` seconds, and clear it."""
        self._event.wait(timeout)
        self._event.clear()


def stands_still(event: Event) -> bool:
    """Whether a work ended with an event, or asks something."""
    return event.work is not None and event.work.after in STANDSTILL


class Watch:
    """The event stream of a client. It begins with the first listener, and ends some seconds after the last one."""

    def __init__(self, runtime: Any) -> None:
        """`runtime` starts the reading, and makes signals and pauses: it is the one whose stream this is."""
        self._runtime = runtime
        self._lock = threading.Lock()
        self._listeners: dict[str, dict[Listener, int | None]] = {}
        self._reading: object = None  # an event loop does not keep its tasks
        self._stream: Incoming | None = None
        self._free_since = 0.0
        self._takes = 0
        self._floor = 0  # where the stream began
        self._latest = dict[str, int]()  # the latest event of each work that matters

    def listen(
        self, listener: Listener, opening: Opening, work_id: str = ALL, since: int | None = None, takes: int = 0
    ) -> None:
        """Let `listener` get the events of a work, or all, after `since`, which is recent: a stream may begin there. `takes`: how
        many works it carries out at a time, which the daemon is told."""
        with self._lock:
            self._listeners.setdefault(work_id, {})[listener] = since
            self._takes += takes
            if self._reading is None:
                self._reading = self._runtime.start(partial(self._read, opening, since))
        if takes:
            self.close()
        elif self._stream is not None and not self.knows(work_id, since):
            listener(None)

    def forget(self, listener: Listener, work_id: str = ALL, takes: int = 0) -> None:
        """Let `listener` get no more."""
        with self._lock:
            self._free_since = time.monotonic()
            self._takes -= takes
            del self._listeners[work_id][listener]
            if not self._listeners[work_id]:
                del self._listeners[work_id]
        if takes:
            self.close()

    def knows(self, work_id: str, since: int | None) -> bool:
        """Whether a work did not stand still, and its other side said nothing, after `since`. What came before the stream is not
        known, nor that of old works."""
        return since is not None and since >= max(self._floor, self._latest.get(work_id, 0))

    def close(self) -> None:
        """End the stream, from any thread. Listeners get another one."""
        if (stream := self._stream) is not None:
            stream.connection.abort()

    async def events(
        self,
        opening: Opening,
        work_id: str,
        since: int | None,
        deadline: float = math.inf,
        *,
        only_standstill: bool = False,
    ) -> AsyncGenerator[Event | None, None]:
        """What a listener gets, without end, and None after a minute without an event. Raises TimeoutError after `deadline`."""
        found, happened = deque[Event | None](), self._runtime.signal()

        def listener(event: Event | None) -> None:
            if event is None and None in found:
                return
            if event is None or not only_standstill or stands_still(event):
                found.append(event)
                happened.set()

        self.listen(listener, opening, work_id, since)
        try:
            while True:
                while found:
                    yield found.popleft()
                if (left := deadline - time.monotonic()) <= 0:
                    raise TimeoutError("nothing happened in time")
                await happened.wait(min(left, LOOK))
                if not found and left > LOOK:
                    found.append(None)
        finally:
            self.forget(listener, work_id)

    async def _read(self, opening: Opening, since: int | None) -> None:
        """Pass events on, over losses of the stream, until nobody listens."""
        backoff = Backoff(FIRST_PAUSE, LAST_PAUSE)
        try:
            while True:
                with suppress(ClientError):
                    self._stream, self._floor = await opening(since, takes := self._takes)
                    self._latest = {}
                    backoff.reset()
                    self._let_look(math.inf if since is None else since)
                    await self._pass_on(self._stream, takes)
                self._lose()
                with self._lock:
                    if not self._listeners:
                        self._reading = None
                        return
                since = None
                self._let_look(math.inf)
                await self._runtime.sleep(backoff.next())
        except BaseException:  # the event loop ends
            self._lose()
            self._reading = None
            raise

    def _lose(self) -> None:
        if (stream := self._stream) is not None:
            self._stream = None
            stream.close()

    def _let_look(self, floor: float) -> None:
        """Tell those that know less than what came before `floor`."""
        with self._lock:
            all_of_them = [one for each in self._listeners.values() for one in each.items()]
        for listener, since in all_of_them:
            if since is None or since < floor:
                listener(None)

    async def _pass_on(self, stream: Incoming, takes: int) -> None:
        """Give events to their listeners, until a gap comes, nobody listens any more, or `takes` is another number. Raises
        ClientError at a loss."""
        async for events in arrivals(stream):  # left to the garbage: an event loop may end in its midst
            for name, _, data in events:
                if name == b"gap":
                    return
                event = msgspec.json.decode(data, type=Event)
                assert event.message is not None
                work_id = event.message.work_id or _NO_WORK
                if event.work is not None and (event.message.direction == "in" or stands_still(event)):
                    self._latest[work_id] = event.seq
                    if len(self._latest) > REMEMBERED:
                        self._floor = max(self._floor, self._latest.pop(next(iter(self._latest))))
                for listener in (*self._listeners.get(ALL, ()), *self._listeners.get(work_id, ())):
                    listener(event)
            unused = not self._listeners and time.monotonic() >= self._free_since + LINGER
            if unused or self._takes != takes:
                return
