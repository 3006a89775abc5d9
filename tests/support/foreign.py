"""A foreign peer: a bare NATS client that publishes whatever bytes a test wants and hears what the daemons send."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from aghbus.protocol.agh.identifiers import subject_for

WORKSPACE: Final = "ws_local"
CHANNEL: Final = "default"
CARD: Final[dict[str, list[str]]] = {
    "profiles_supported": ["agh-network/v0"],
    "capabilities": [],
    "artifacts_supported": ["capability"],
    "trust_modes_supported": [],
}
"""The lists of a card of the reference."""


class Foreign:
    """One bare client under a peer id; `received` holds what was directed to it or broadcast."""

    def __init__(self, client: Client, peer_id: str) -> None:
        self.client = client
        self.peer_id = peer_id
        self.received: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self._count = 0

    async def listen(self) -> None:
        async def hear(message: Msg) -> None:
            self.received.append(json.loads(message.data))
            self._news.set()

        for to in (None, self.peer_id):
            await self.client.subscribe(subject_for(WORKSPACE, CHANNEL, to), cb=hear)
        await self.client.flush()

    def envelope(self, kind: str, body: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """A valid own envelope with `fields` on top; None removes nothing, it is sent as null."""
        self._count += 1
        return {
            "protocol": "agh-network/v0",
            "id": f"msg_{self.peer_id}_{self._count}_{time.time_ns()}",
            "workspace_id": WORKSPACE,
            "kind": kind,
            "channel": CHANNEL,
            "from": self.peer_id,
            "to": None,
            "ts": int(time.time()),
            "body": body,
            "proof": None,
            **fields,
        }

    async def greet(self, **fields: Any) -> dict[str, Any]:
        """Announce itself as the reference does."""
        envelope = self.envelope("greet", {"peer_card": {"peer_id": self.peer_id, **CARD}}, **fields)
        await self.publish(envelope)
        return envelope

    def work(self, to: str, work_id: str, **fields: Any) -> dict[str, Any]:
        """A say that opens a work in a thread."""
        more = {"surface": "thread", "thread_id": "thread_foreign", "to": to, "work_id": work_id, **fields}
        return self.envelope("say", {"text": "do it"}, **more)

    async def publish(self, envelope: dict[str, Any] | bytes, to: str | None = None) -> None:
        """To the subject of the envelope's own `to`, or of `to` for raw bytes."""
        raw = envelope if isinstance(envelope, bytes) else json.dumps(envelope).encode()
        target = envelope.get("to") if isinstance(envelope, dict) else to
        await self.client.publish(subject_for(WORKSPACE, CHANNEL, target), raw)
        await self.client.flush()

    async def expect(self, timeout: float = 40.0, **wanted: Any) -> dict[str, Any]:
        """The first envelope received whose top-level or body fields have these values."""
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            self._news.clear()
            for envelope in self.received:
                if all(envelope.get(key, envelope["body"].get(key)) == value for key, value in wanted.items()):
                    return envelope
            left = deadline - asyncio.get_running_loop().time()
            assert left > 0, f"{self.peer_id} received no {wanted} in {timeout} s, but {self.received}"
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                continue


@asynccontextmanager
async def foreign_peer(url: str, peer_id: str) -> AsyncIterator[Foreign]:
    """Connect, listen, and disconnect at the end: the broker knows then that nobody listens."""
    client = await nats.connect(url)
    peer = Foreign(client, peer_id)
    try:
        await peer.listen()
        yield peer
        if client.is_connected:
            await client.drain()
    finally:
        await client.close()
