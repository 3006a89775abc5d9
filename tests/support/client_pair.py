"""Two daemons in one home with a client of each: `ops` asks, `worker` announces test.run and other."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from aghbus.client import Client, Endpoint
from tests.support.daemons import Daemon, Home, wait_for


class Pair(NamedTuple):
    """The daemons and a client of each."""

    ops: Daemon
    worker: Daemon
    asking: Client
    working: Client


@contextlib.contextmanager
def running_pair(folder: Path) -> Iterator[Pair]:
    """Both daemons, which know each other."""
    home, capabilities = Home(folder), ("--capability", "test.run", "--capability", "other")
    with Daemon(home, "ops") as ops, Daemon(home, "worker", *capabilities) as worker:
        asking, working = (Client(Endpoint(path=str(daemon.socket_path))) for daemon in (ops, worker))
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
        yield Pair(ops, worker, asking, working)


class Running:
    """A function that runs in a thread; `result` waits for what it returned or raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._result = work()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._result
