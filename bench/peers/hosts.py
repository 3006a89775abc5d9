"""Agents that are no Python programs of ours: a command under `aghctl serve`, and a model that calls the tools of `aghctl mcp`."""

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from bench.harness.processes import HANG
from tests.support.daemons import Daemon
from tests.support.mcp_relay import RelayProcess

_TASK: Final = "x" * 200


@contextlib.contextmanager
def serving(daemon: Daemon, *command: str) -> Iterator[None]:
    """`aghctl serve` with this command, one at a time."""
    words = ["--name", daemon.name, "serve", "--capability", "test.run", "--", *command]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "-m", "aghbus.cli", *words], env=daemon.env, stdout=quiet, stderr=quiet, start_new_session=True
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(HANG)


class _Model:
    """Calls tools through a relay, one after the other."""

    def __init__(self, relay: RelayProcess) -> None:
        self._relay = relay
        self._numbers = itertools.count(1)
        relay.open("bench")

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer of a tool."""
        return self._relay.call(next(self._numbers), tool, **arguments)

    def take(self, work_id: str) -> dict[str, Any]:
        """The next message, asked for until it is there, which must be of this work."""
        end = time.monotonic() + HANG
        while not (messages := self.call("inbox")["messages"]):
            if time.monotonic() > end:
                raise RuntimeError(f"{work_id} did not come")
        message: dict[str, Any] = messages[0]
        if message["work_id"] != work_id:
            raise RuntimeError(f"not of {work_id}: {message}")
        return message

    def ack(self, message: dict[str, Any]) -> None:
        """Settle it."""
        self.call("ack", messages=[{"seq": message["seq"], "lease": message["lease"]}])


@contextlib.contextmanager
def models(ops: Daemon, worker: Daemon) -> Iterator[Callable[[], float]]:
    """Two models, each with its relay and daemon. The function carries out a work from the one to the other: milliseconds from
    the call that opens it until its result is acked."""
    with RelayProcess(ops.home, ops.name) as near, RelayProcess(worker.home, worker.name) as far:
        yield partial(_work, _Model(near), _Model(far), worker.name)


def _work(asking: _Model, working: _Model, to: str) -> float:
    started = time.perf_counter()
    work_id = asking.call("open_work", to=to, task=_TASK)["works"][0]["work_id"]
    opening = working.take(work_id)
    working.call("step", work_id=work_id, step="accept")
    working.call("step", work_id=work_id, step="complete", message="done")
    working.ack(opening)
    result = asking.take(work_id)
    if result["work_state"] != "completed":
        raise RuntimeError(f"not completed: {result}")
    asking.ack(result)
    return 1000 * (time.perf_counter() - started)
