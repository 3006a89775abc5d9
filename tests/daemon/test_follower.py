"""The follower: a slow artifact store delays neither ends of works nor expiry, and a disk that cannot be read ends nothing."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.bridge.format_log import FORMAT_WITH_TIMEOUTS, keep_record
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.wiring import Replacements
from aghbus.protocol.api.artifacts import Artifact
from aghbus.protocol.base.errors import Unavailable
from aghbus.store.engine.database import Store
from aghbus.store.tables.bridge import log as bridge_log
from tests.support.bridge_log import ASKED_MS, record
from tests.support.makers import US, WORKSPACE, receive, say
from tests.support.natsutil import wait_until
from tests.support.publishing import Hand, Up
from tests.support.wiring import daemon_context, daemon_parts

WITHIN = 20.0


class Slow(Artifacts):
    """An artifact store that gives up on the first artifact after five seconds, and never answers for the next."""

    def __init__(self, clock: Hand) -> None:
        self._clock = clock
        self.asked = 0
        self.again = asyncio.Event()

    async def get(self, _work_id: str, _name: str) -> tuple[Artifact, AsyncIterator[bytes]]:
        self.asked += 1
        if self.asked > 1:
            self.again.set()
            await asyncio.Event().wait()
        self._clock.now += 5.0
        raise Unavailable("the artifact is damaged")


async def test_expiry_does_not_wait_for_all_fetched_messages(store: Store) -> None:
    clock = Hand()
    artifacts = Slow(clock)
    context = daemon_context(Settings(name=US, peer_id=US, workspace=WORKSPACE), clock)
    parts = daemon_parts(context, store, Up(), Replacements(artifacts=artifacts))
    await store.write(
        lambda tx: keep_record(tx, FORMAT_WITH_TIMEOUTS, "out", record("q", "sent", waits=2), at_ms=ASKED_MS)
    )
    for number in range(3):
        reference = {"uri": f"agh://artifacts/work_1/{number}.json", "sha256": "0" * 64, "size": 5}
        parts.notifier.notify(
            (await receive(store, say(ext={f"{FORMAT_WITH_TIMEOUTS}.message_ref": reference}))).seq or 0
        )
    follower = asyncio.create_task(parts.bridge.follower.run())
    async with asyncio.timeout(WITHIN):
        await artifacts.again.wait()
    follower.cancel()
    (question, *_) = await bridge_log.page(store.reader, FORMAT_WITH_TIMEOUTS, 10)
    assert question["status"] == "timeout"
    await asyncio.gather(follower, return_exceptions=True)


async def test_it_begins_once_its_position_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await Store.open(path)
    await store.write(
        lambda tx: keep_record(tx, FORMAT_WITH_TIMEOUTS, "out", record("q", "sent", waits=2), at_ms=ASKED_MS)
    )
    await store.close()
    async with contextlib.AsyncExitStack() as stack:
        store = await Store.open(path)
        stack.push_async_callback(store.close)
        parts = daemon_parts(daemon_context(Settings(name=US, peer_id=US, workspace=WORKSPACE), Hand()), store, Up())
        content = await asyncio.to_thread(path.read_bytes)
        os.truncate(path, 8_192)  # the pages of the tables cannot be read
        follower = asyncio.create_task(parts.bridge.follower.run())
        stack.callback(follower.cancel)
        await wait_until(lambda: store.reader.error is not None, WITHIN, "a read to fail")
        await asyncio.to_thread(path.write_bytes, content)
        await receive(store, say())  # the reader forgets the pages that it has
        async with asyncio.timeout(WITHIN):
            while (await bridge_log.page(store.reader, FORMAT_WITH_TIMEOUTS, 10))[0]["status"] != "timeout":
                assert not follower.done(), follower.exception()
                await parts.notifier.wait(0.1)
