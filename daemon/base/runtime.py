"""Interpreter settings for a long-running daemon with many short-lived objects and threads beside its event loop.

docs/performance.md has the measured effect of each.
"""

import asyncio
import gc
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

SWITCH_SECONDS: Final = 0.0005
"""How long a thread waits for the interpreter lock before it asks for it, ours: a tenth of Python's default. A busy loop that often
turns to its selector would starve the threads that commit and read (docs/adr/0002-writer-on-the-loop.md); they are few, so that
switching costs little."""
_COLLECT_AFTER: Final = (20_000, 50, 100)  # objects, generations: a batch of messages must not set the collector off


def run(main: Coroutine[Any, Any, T]) -> T:
    """`main` on the event loop of this process, on uvloop's where there is one."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(*_COLLECT_AFTER)
    gc.freeze()  # imported modules are never collected
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: the standard loop does the same, more slowly
        return None
    return uvloop.new_event_loop
