"""Named points where a crash test can kill the daemon: with `AGHD_FAILPOINT=publish.confirmed:3` it gets SIGKILL at the third pass.

Unset, a pass costs one call, and nothing where `ARMED` is asked first. `POINTS` has the names, in the order of the pipeline.
"""

import os
import signal
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "AGHD_FAILPOINT"

POINTS: Final = (
    "send.decided",  # our own envelope is in the open transaction
    "send.committed",  # and durable, but the caller has no answer
    "publish.before",  # read from the outbox
    "publish.handed",  # in the connection's buffer or sent to the stream
    "publish.confirmed",  # the broker has it, the outbox does not record it
    "receive.parsed",  # a valid envelope is about to be queued
    "receive.decided",  # its effects are in the open transaction
    "receive.committed",  # and durable, but not acknowledged
    "receive.acted",  # acknowledged and announced
    "inbox.leased",  # a lease is committed, but the consumer has no answer
    "inbox.acked",
)

RARE_POINTS: Final = (
    "bridge.appended",  # log entries of a foreign format are in their file, the store does not record it
    "chains.applied",  # a chain's files are written, the store does not record it
    "purge.removed",  # some of the messages of a purge are removed, and not overwritten
    "inbox.dead",  # an opening is dead, its work has not ended
)
"""Points that traffic does not pass by itself."""

ARMED: Final[dict[str, int]] = {}
"""The armed point, with its passes until the kill."""


def arm(environment: Mapping[str, str]) -> None:
    """Read the variable. Raises ValueError for an unknown point, whose crash test would never crash."""
    name, _, count = environment.get(VARIABLE, "").partition(":")
    if name and name not in POINTS + RARE_POINTS:
        raise ValueError(f"{VARIABLE}: {name!r} is none of {', '.join(POINTS + RARE_POINTS)}")
    ARMED.clear()
    if name:
        ARMED[name] = int(count or 1)


def failpoint(name: str) -> None:
    """Pass the point `name`: kills the process, without cleanup, at the armed pass."""
    if name not in ARMED:
        return
    ARMED[name] -= 1
    if ARMED[name] <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
