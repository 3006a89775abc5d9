"""A message in the artifact store while the broker is unreachable is delivered later, in order."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from aghbus.daemon.artifacts.store import Artifacts, ArtifactsUnreachable
from aghbus.daemon.bridge.format_log import FORMAT_WITH_TIMEOUTS, keep_record
from aghbus.daemon.config.bridge_settings import BridgeSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.wiring import DaemonParts, Replacements
from aghbus.protocol.api.artifacts import Artifact
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.queries import BridgeStreamQuery
from aghbus.store.engine.database import Store
from aghbus.store.tables.bridge import log as bridge_log
from aghbus.store.tables.bridge import messages as bridge
from tests.support.bridge_daemons import query
from tests.support.bridge_log import ASKED_MS, record
from tests.support.makers import BOB, US, WORKSPACE, receive, say
from tests.support.publishing import Hand, Up
from tests.support.wiring import daemon_context, daemon_parts

WITHIN = 20.0
MESSAGE = query("asker", "helper", type="event")
CONTENT = json.dumps(MESSAGE).encode()


class Away(Artifacts):
    """An artifact store that has one content under every name, once the broker is back."""

    def __init__(self) -> None:
        self.back = asyncio.Event()
        self.asked = asyncio.Event()

    async def get(self, work_id: str, name: str) -> tuple[Artifact, AsyncIterator[bytes]]:
        self.asked.set()
        if not self.back.is_set():
            raise ArtifactsUnreachable("the broker cannot be reached")
        uri = f"agh://artifacts/{work_id}/{name}"
        artifact = Artifact(uri=uri, work_id=work_id, name=name, size=len(CONTENT), digest="", put_by="bob")
        return artifact, self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield CONTENT


def parts_of(store: Store, artifacts: Artifacts) -> DaemonParts:
    agents = BridgeSettings(agents=(f"asker={BOB}", f"helper={US}"))
    settings = Settings(name=US, peer_id=US, workspace=WORKSPACE, bridge=agents)
    return daemon_parts(daemon_context(settings, Hand()), store, Up(), Replacements(artifacts=artifacts))


REFERRING: Final = {
    f"{FORMAT_WITH_TIMEOUTS}.message_ref": {
        "uri": "agh://artifacts/bridge/message.json",
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "size": len(CONTENT),
    }
}


async def arrived(parts: DaemonParts, *said: dict[str, Any]) -> list[int]:
    """The sequences of these says to us, which the daemon knows of."""
    seqs = [(await receive(parts.store, say(**fields))).seq or 0 for fields in said]
    parts.notifier.notify(seqs[-1])
    return seqs


async def test_stream_waits_for_an_unreachable_artifact_then_delivers(store: Store) -> None:
    artifacts = Away()
    parts = parts_of(store, artifacts)
    first, large, last = await arrived(parts, {"text": "one"}, {"ext": REFERRING}, {"text": "three"})
    stream = parts.bridge.delivery.stream(FORMAT_WITH_TIMEOUTS, BridgeStreamQuery(since=0))
    async with asyncio.timeout(WITHIN):
        before = await anext(stream)
        assert artifacts.asked.is_set()
        artifacts.back.set()
        after = await anext(stream)
    assert [item.seq for item in before] == [first]
    assert [item.seq for item in after] == [large, last]
    (fetched, _) = after
    assert not isinstance(fetched, Event)
    assert (fetched.native, fetched.message) == (False, MESSAGE)


async def test_get_of_an_unreachable_artifact_fails_and_can_be_retried(store: Store) -> None:
    artifacts = Away()
    parts = parts_of(store, artifacts)
    (large,) = await arrived(parts, {"ext": REFERRING})
    out = parts.bridge.delivery
    with pytest.raises(ArtifactsUnreachable) as refused:
        await out.get(FORMAT_WITH_TIMEOUTS, large)
    assert refused.value.code == "unavailable"
    artifacts.back.set()
    assert (await out.get(FORMAT_WITH_TIMEOUTS, large)).message == MESSAGE


async def test_an_artifact_store_that_the_server_refuses_us_holds_nothing_up(store: Store) -> None:
    parts = parts_of(store, Away())
    (large,) = await arrived(parts, {"text": "in plain words", "ext": REFERRING})
    parts.denied.note('permissions violation for publish to "$js.api.direct.get.obj_agh"', parts.clock.monotonic())
    got = await parts.bridge.delivery.get(FORMAT_WITH_TIMEOUTS, large)
    assert got.native
    assert "message_ref" in {found.rule for found in got.findings}


async def test_the_log_waits_for_an_unreachable_message_while_other_rows_expire(store: Store) -> None:
    artifacts = Away()
    parts = parts_of(store, artifacts)
    await store.write(
        lambda tx: keep_record(tx, FORMAT_WITH_TIMEOUTS, "out", record("q", "sent", waits=2), at_ms=ASKED_MS)
    )
    (large,) = await arrived(parts, {"ext": REFERRING})
    running = asyncio.create_task(parts.bridge.follower.run())

    async def until(rows: int, status: str) -> list[dict[str, Any]]:
        while True:
            found = await bridge_log.page(store.reader, FORMAT_WITH_TIMEOUTS, 10)
            if len(found) == rows and found[0]["status"] == status:
                return found
            await asyncio.sleep(0.01)

    async with asyncio.timeout(WITHIN):
        await until(1, "timeout")
        assert artifacts.asked.is_set()
        assert await bridge.position(store.reader, "follower") < large
        artifacts.back.set()
        (_, logged) = await until(2, "timeout")
    assert logged["messageId"] == MESSAGE["id"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
