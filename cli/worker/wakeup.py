"""Waking the worker's main thread: from other threads and from signal handlers, which must not touch a lock."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator

WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Wakeup:
    """A pipe to oneself: `wake` from anywhere ends a `wait` of the main thread, or the next one. `signals` counts signals."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self.signals: list[signal.Signals] = []

    def wake(self) -> None:
        """Wake the main thread."""
        with contextlib.suppress(BlockingIOError):  # full: it will wake all the same
            os.write(self._writer, b"!")

    def wait(self, timeout: float) -> None:
        """Until it rings, `timeout` seconds at most."""
        if select.select([self._reader], [], [], timeout)[0]:
            os.read(self._reader, 4096)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Signals ring, instead of ending the process; one that was ignored from the start (nohup) stays so."""
        before = {number: signal.getsignal(number) for number in WATCHED}
        taken = [number for number in WATCHED if before[number] is not signal.SIG_IGN]
        for number in taken:
            signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number in taken:
                signal.signal(number, before[number])

    def _on_signal(self, number: int, frame: object) -> None:
        self.signals.append(signal.Signals(number))
        self.wake()
