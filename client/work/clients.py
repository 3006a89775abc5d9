"""The two clients. Their methods are declared once, in core/operations.py."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import aclosing, closing, suppress
from typing import TYPE_CHECKING, Any, Self, cast

from aghbus.client.core.core import Core
from aghbus.client.core.method import Asynchronous, Blocking, Method
from aghbus.client.core.operations import Methods
from aghbus.client.core.threads import Threads
from aghbus.client.errors import Unreachable
from aghbus.client.http import Endpoint, iterate
from aghbus.client.http import run as run_steps
from aghbus.client.locate import find
from aghbus.client.work import handle
from aghbus.client.work.feed import LEASE, Accept, jobs
from aghbus.client.work.handle import AsyncWorkHandle, Opening, WorkHandle
from aghbus.client.work.job import AsyncJob, Job
from aghbus.protocol.api.works import Work

if TYPE_CHECKING:
    from typing_extensions import Unpack

TIMEOUT = 30.0
"""Seconds that a call may take, restarts of the daemon included."""


def endpoint_from(
    name: str | None = None,
    *,
    socket: str | None = None,
    api: str | None = None,
    token_file: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Endpoint:
    """The endpoint of the daemon that `aghctl` would find with `--name`, `--socket`, `--api` and `--token-file`."""
    options = {"name": name, "socket": socket, "api": api, "token_file": token_file}
    return find(options, os.environ if env is None else env)


class FoundEndpoint(Endpoint):
    """The daemon called `name`, else the one that `aghctl` finds, looked for until one is there."""

    def __init__(self, name: str | None) -> None:
        """Raises UsageError when several daemons run and none is named."""
        super().__init__()
        self._name = name
        self._found: Endpoint | None = None
        with suppress(Unreachable):
            self.resolved()

    def resolved(self) -> Endpoint:
        """The daemon's address, which stays the same from then on. Raises Unreachable."""
        if self._found is None:
            self._found = endpoint_from(self._name)
        return self._found

    def __str__(self) -> str:
        return str(self._found) if self._found is not None else f"the daemon {self._name or ''}".rstrip()


class Common(Methods):
    """What both clients have besides the methods of routes."""

    _runtime: Callable[[Endpoint], Threads]
    run = Method(handle.run)

    def __init__(self, endpoint: Endpoint, *, timeout: float = TIMEOUT) -> None:
        self.core: Core = Core(self._runtime(endpoint), timeout)

    @classmethod
    def from_env(cls, name: str | None = None, *, timeout: float = TIMEOUT) -> Self:
        """The daemon called `name`; without it the one that `aghctl` finds (AGHD_NAME, AGHD_API_SOCKET, the only one).

        When there is none yet, calls wait for it. Raises UsageError when there are several.
        """
        return cls(FoundEndpoint(name), timeout=timeout)

    def close(self) -> None:
        """Close the connections that are kept for further calls; who calls nevertheless gets new ones. `with` does it, too."""
        self.core.runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.core.endpoint}>"


class Client(Common, Blocking):
    """A client that blocks: one method for each route of the local API, event streams, jobs, and works that are awaited.

    A call is repeated while the daemon is away, for `timeout` seconds. The ids of messages are made before the first
    send, so a repetition is the same message. Threads may share a client. Every error of the daemon is a RefusedByDaemon
    of a class of its own, with `code`, `message` and `hint`.

    >>> client = Client.from_env()
    >>> work = client.run(to="patch-worker", text="Run the migration smoke test")
    >>> print(work.state, work.result)
    """

    _runtime = Threads

    def start(
        self, to: str | None = None, text: str = "", *, to_capability: str | None = None, **given: Unpack[Opening]
    ) -> WorkHandle:
        """Open a work for the peer `to`, or for a capability: then the daemon chooses a peer, and another one if that one does not
        accept it (docs/hand-over.md).

        >>> work = client.start(to_capability="test.run", text="Run the migration smoke test")
        >>> print(work.id, work.result(timeout=60).state)
        """
        return WorkHandle(run_steps(handle.start(self.core, to, text, to_capability=to_capability, **given)))

    def map(
        self, capability: str, inputs: Iterable[str], *, concurrency: int = 8, **given: Unpack[Opening]
    ) -> Generator[tuple[str, Work], None, None]:
        """Give each input as a work to the least busy peer with a capability, `concurrency` at a time; input and work as they end.

        >>> for branch, work in client.map("test.run", ["main", "next"]):
        ...     print(branch, work.state, work.result)
        """
        from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

        fields, left = cast(dict[str, Any], given), iter(inputs)
        running: dict[Future[Work], str] = {}
        pool = ThreadPoolExecutor(concurrency)
        try:
            while True:
                for text in itertools.islice(left, concurrency - len(running)):
                    running[pool.submit(self.run, to_capability=capability, text=text, **fields)] = text
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(done), done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # those that run continue

    def jobs(
        self,
        capability: str | None = None,
        *,
        accept: Accept | None = None,
        lease: float = LEASE,
        others: bool = False,
    ) -> Generator[Job, None, None]:
        """Works for this daemon, without end: each is leased, accepted, and stays leased while the block runs.

        `capability`: the daemon must announce it, and works that name another one are left to others. `accept` may leave
        others in the inbox. Works of peers that were not admitted wait, unless `others` is true. After `lease` seconds the
        work of a dead worker is ready again, as a further `attempt`. A job that the block did not report is completed; one
        whose block raised is returned to the inbox, unless the job is used as a context manager, which reports the failure.

        >>> for job in client.jobs(capability="test.run"):
        ...     with job:
        ...         job.complete(result={"passed": run_tests(job.text)})
        """
        found = jobs(self.core, [capability] if capability else [], accept, lease, others=others)
        with closing(iterate(found)) as cores:
            for core in cores:
                yield Job(core)


class AsyncClient(Common, Asynchronous):
    """The client for asyncio: the same methods as Client, which are awaited, and asynchronous iterators.

    >>> client = AsyncClient.from_env()
    >>> work = await client.run(to="patch-worker", text="Run the migration smoke test")
    """

    @staticmethod
    def _runtime(endpoint: Endpoint) -> Threads:
        from aghbus.client.core.aio import EventLoop  # a blocking client needs no asyncio

        return EventLoop(endpoint)

    async def start(
        self, to: str | None = None, text: str = "", *, to_capability: str | None = None, **given: Unpack[Opening]
    ) -> AsyncWorkHandle:
        """As Client.start."""
        return AsyncWorkHandle(await handle.start(self.core, to, text, to_capability=to_capability, **given))

    async def map(
        self, capability: str, inputs: Iterable[str], *, concurrency: int = 8, **given: Unpack[Opening]
    ) -> AsyncGenerator[tuple[str, Work], None]:
        """As Client.map."""
        import asyncio

        fields, left = cast(dict[str, Any], given), iter(inputs)
        running: dict[asyncio.Task[Work], str] = {}
        try:
            while True:
                for text in itertools.islice(left, concurrency - len(running)):
                    running[asyncio.create_task(self.run(to_capability=capability, text=text, **fields))] = text
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield running.pop(task), task.result()
        finally:
            for task in running:
                task.cancel()

    async def jobs(
        self,
        capability: str | None = None,
        *,
        accept: Accept | None = None,
        lease: float = LEASE,
        others: bool = False,
    ) -> AsyncGenerator[AsyncJob, None]:
        """As Client.jobs. One job at a time: Worker runs several."""
        found = jobs(self.core, [capability] if capability else [], accept, lease, others=others)
        async with aclosing(found) as cores:
            async for core in cores:
                yield AsyncJob(core)
