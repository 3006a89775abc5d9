"""The task that advances chain runs: one run does not block others, and failures are retried."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from aghbus.daemon.artifacts.store import Artifacts, ArtifactsUnreachable
from aghbus.daemon.chains.runner import RunnerLimits
from aghbus.daemon.chains.service import ChainService
from aghbus.daemon.config.bridge_settings import BridgeSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.send.sender import Batch, Sender
from aghbus.daemon.wiring import Replacements
from aghbus.protocol.api.artifact_uri import artifact_uri
from aghbus.protocol.api.artifacts import Artifact
from aghbus.protocol.api.chains import ChainRun, ChainStartRequest
from aghbus.protocol.api.queries import ChainRunQuery
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from tests.support.chain_agents import asked, chain
from tests.support.makers import BOB, US
from tests.support.natsutil import wait_until
from tests.support.publishing import Up
from tests.support.wiring import daemon_context, daemon_parts

WITHIN = 20.0
LARGE = chain({"a": {"peer": BOB, "format": "agentos", "input": asked("{{input}} {{input}}")}})
LONELY = chain({"a": {"capability": "nobody.has.it", "timeout": 0.01, "input": "go"}})

T = TypeVar("T")


class Far(Artifacts):
    """An artifact store that stores once the test sets `open`; for the first `lost` calls the broker is unreachable."""

    def __init__(self) -> None:
        self.puts = 0
        self.held = 0
        self.lost = 0
        self.open = asyncio.Event()

    async def put(self, work_id: str, name: str, _content: AsyncIterator[bytes]) -> Artifact:
        self.puts += 1
        if self.lost:
            self.lost -= 1
            raise ArtifactsUnreachable("the broker cannot be reached")
        self.held += 1
        try:
            await self.open.wait()
        finally:
            self.held -= 1
        return Artifact(artifact_uri(work_id, name), work_id, name, 1, f"sha256:{0:064}", US)


class Failing(Sender):
    """The next `failures` transactions fail."""

    failures = 0
    looks = 0

    async def send_all(self, job: Callable[[Transaction, Batch], T]) -> T:
        self.looks += 1
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("the disk is full")
        return await super().send_all(job)


class Chains(ChainService):
    """The runner of a daemon without a link, and the chain operations of the API."""

    def __init__(self, store: Store, limits: RunnerLimits) -> None:
        settings = Settings(name=US, peer_id=US, bridge=BridgeSettings(agents=(f"asker={US}", f"helper={BOB}")))
        self.far = Far()
        replaced = Replacements(sender_type=Failing, artifacts=self.far, runner_limits=limits)
        self.parts = daemon_parts(daemon_context(settings), store, Up(), replaced)
        assert isinstance(self.parts.sender, Failing)
        self.sender = self.parts.sender
        super().__init__(
            settings=self.parts.settings,
            identity=self.parts.identity,
            clock=self.parts.clock,
            store=store,
            runner=self.parts.chains,
        )

    async def begin(self, document: Any) -> ChainRun:
        return await self.start(ChainStartRequest(chain=document, input='"' * 400_000 if document is LARGE else None))

    async def moved(self, run: ChainRun) -> ChainRun:
        """The run after its next change."""
        found = await self.get_run(run.run_id, ChainRunQuery(since=run.version, wait=WITHIN))
        assert found.version > run.version, "the run did not move"
        return found

    async def opened(self, run: ChainRun) -> None:
        """Wait until the work of the run's node is opened."""
        async with asyncio.timeout(WITHIN):
            while (await self.get_run(run.run_id, ChainRunQuery())).history[0].work_id is None:
                await self.runner.changes.wait(1.0)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self.runner.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def service(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Chains]:
    store = await Store.open(tmp_path / "store.db", synchronous="normal")
    yield Chains(store, getattr(request, "param", RunnerLimits()))
    await store.close()


async def test_a_run_with_an_unresponsive_artifact_store_does_not_block_others(service: Chains) -> None:
    async with service.running():
        large = [await service.begin(LARGE) for _ in range(3)]
        await wait_until(lambda: service.far.held == 2, WITHIN, "two messages at a time on their way")
        for _ in range(2):
            lonely = await service.moved(await service.begin(LONELY))
            assert (lonely.state, lonely.history[0].work_state) == ("failed", "failed")
        assert service.far.puts == 2  # nor is it asked again before it has answered
        service.far.open.set()
        for run in large:
            await service.opened(run)
        assert (service.far.puts, service.far.held) == (3, 0)


@pytest.mark.parametrize("service", [RunnerLimits(page=1)], indirect=True)
async def test_runs_with_transfers_do_not_fill_the_page(service: Chains) -> None:
    async with service.running():
        await service.begin(LARGE)
        await wait_until(lambda: service.far.held, WITHIN, "the message to be on its way")
        assert (await service.moved(await service.begin(LONELY))).state == "failed"


@pytest.mark.parametrize("service", [RunnerLimits(artifact_pause=0.01)], indirect=True)
async def test_an_unreachable_broker_is_retried_after_a_pause(service: Chains) -> None:
    service.far.lost = 2
    service.far.open.set()
    async with service.running():
        await service.opened(await service.begin(LARGE))
    assert service.far.puts == 3


@pytest.mark.parametrize("service", [RunnerLimits(artifact_pause=3600.0)], indirect=True)
async def test_an_unreachable_broker_is_retried_when_the_link_is_up(service: Chains) -> None:
    service.far.lost = 1
    async with service.running():
        await service.begin(LARGE)
        await wait_until(lambda: service.far.puts, WITHIN, "the first try")

        def tried_again() -> bool:
            service.runner.link_up()
            return service.far.held == 1

        await wait_until(tried_again, WITHIN, "the second try")


@pytest.mark.parametrize("how", ["cancelled", "drained"])
async def test_no_task_of_a_run_outlives_the_runner(service: Chains, how: str) -> None:
    async with service.running() as task:
        await service.begin(LARGE)
        await wait_until(lambda: service.far.held, WITHIN, "the message to be on its way")
        if how == "cancelled":
            task.cancel()
        else:
            service.parts.notifier.close()
        await asyncio.wait({task}, timeout=WITHIN)
        assert task.cancelled() if how == "cancelled" else task.result() is None
        assert service.far.held == 0


@pytest.mark.parametrize("service", [RunnerLimits(store_pause=0.01)], indirect=True)
async def test_a_round_that_the_store_refused_is_retried(service: Chains) -> None:
    await service.begin(chain({"a": {"capability": "nobody.has.it", "input": "go"}}))
    service.sender.looks, service.sender.failures = 0, 1
    async with service.running():
        await wait_until(lambda: service.sender.looks == 2, WITHIN, "the second look")


@pytest.mark.parametrize("service", [RunnerLimits(store_pause=0.01)], indirect=True)
async def test_a_transfer_that_the_store_refused_is_retried(service: Chains) -> None:
    async with service.running():
        run = await service.begin(LARGE)
        await wait_until(lambda: service.far.held, WITHIN, "the message to be on its way")
        service.sender.failures = 1
        service.far.open.set()
        await service.opened(run)
    assert (service.sender.failures, service.far.puts) == (0, 2)
