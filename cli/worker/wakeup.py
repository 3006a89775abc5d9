"""Wakes the worker's main thread from other threads and from signal handlers, which must not use locks."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator

WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Wakeup:
    """A self-pipe: `wake`, from any thread, ends the current or the next `wait`. `signals` has the signals received."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self.signals: list[signal.Signals] = []

    def wake(self) -> None:
        """Wake the main thread."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full: it wakes anyway
            os.write(self._writer, b"!")

    def wait(self, timeout: float) -> None:
        """Wait for `wake`, at most `timeout` seconds."""
        if select.select([self._reader], [], [], timeout)[0]:
            os.read(self._reader, 4096)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Signals wake the main thread instead of ending the process; signals that are ignored (nohup) stay ignored."""
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
