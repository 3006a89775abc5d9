"""Ctrl-C between two steps of a sandbox, and not within one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Handle SIGINT after the block, which leaves no socket or process half made; a second SIGINT is handled at once."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    deferred: list[int] = []

    def defer(number: int, frame: FrameType | None) -> None:
        if deferred:
            handler(number, frame)
        deferred.append(number)

    signal.signal(signal.SIGINT, defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if deferred:
            signal.raise_signal(signal.SIGINT)
