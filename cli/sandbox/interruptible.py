"""A sandbox that is cleaned up when a signal ends the command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from aghbus.testing.sandbox import Sandbox

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible_sandbox() -> Iterator[Sandbox]:
    """A sandbox whose block SIGINT, SIGTERM and SIGHUP leave; later signals are ignored, so that the clean-up is complete."""
    with Sandbox() as sandbox:
        for number in _ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup's SIGHUP stays ignored
                signal.signal(number, _interrupt)
        try:
            yield sandbox
        finally:
            _ignore_ending()


def _interrupt(number: int, frame: FrameType | None) -> None:
    _ignore_ending()
    raise KeyboardInterrupt


def _ignore_ending() -> None:
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
