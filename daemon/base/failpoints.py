"""Named places where a test can kill the daemon: `AGHD_FAILPOINT=publish.confirmed:3` dies (SIGKILL) at the third passage.

For the crash tests only. Unset, a passage costs one comparison. The names are those of `POINTS`, in the order of the pipeline.
"""

import os
import signal
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "AGHD_FAILPOINT"

POINTS: Final = (
    "send.decided",  # our own envelope is in the open transaction
    "send.committed",  # and durable, but nobody was told yes
    "publish.before",  # taken from the outbox
    "publish.handed",  # in the connection's buffer or in the stream's hands
    "publish.confirmed",  # the broker has it, the outbox does not know
    "receive.parsed",  # a valid envelope waits for the store
    "receive.decided",  # its effects are in the open transaction
    "receive.committed",  # and durable, but nothing was done about it
    "receive.acted",  # acknowledged and announced
    "inbox.leased",  # a lease is committed, but the consumer was not told
    "inbox.acked",
)

BRIDGE_POINTS: Final = (
    "bridge.appended",  # log entries are in their file, the store does not know
)
"""Only passed where a foreign format is spoken."""

_armed = ""
_left = 0


def arm(environment: Mapping[str, str]) -> None:
    """Read the variable. ValueError for a point that does not exist: a crash test that never crashes proves nothing."""
    global _armed, _left
    name, _, count = environment.get(VARIABLE, "").partition(":")
    if name and name not in POINTS + BRIDGE_POINTS:
        raise ValueError(f"{VARIABLE}: {name!r} is none of {', '.join(POINTS + BRIDGE_POINTS)}")
    _armed, _left = name, int(count or 1)


def failpoint(name: str) -> None:
    """Pass the point `name`; the process ends here, without any cleaning up, when its time has come."""
    global _left
    if name != _armed:
        return
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
