"""Receiving without a broker: a real intake over a real store, and the messages that it is offered."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.nats.events import Settlement
from aghbus.daemon.nats.link import InboundMessage, Link
from aghbus.daemon.receive.committer import Committer
from aghbus.daemon.state.keys import FormerKey
from aghbus.daemon.state.rate_limits import BYTES_PER_TOKEN
from aghbus.daemon.wiring import DaemonParts, Replacements
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.identifiers import subject_for
from aghbus.protocol.agh.trust.keys import SigningKey
from aghbus.protocol.agh.trust.proof import EnvelopeSigner, verify_envelope
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.memory.trust import Rule
from tests.support.wiring import daemon_context, daemon_parts

FRIEND = EnvelopeSigner(SigningKey(bytes(range(32))), "friend")
OTHER = EnvelopeSigner(SigningKey(bytes(range(1, 33))), "other")


class Settled(Settlement):
    """Records how a stream's message was settled."""

    def __init__(self) -> None:
        self.said = ""

    def ack(self) -> None:
        self.said = "ack"

    def nak(self, delay: float) -> None:
        self.said = "nak"


class Messages:
    """Makes messages of peers, each with its own id."""

    def __init__(self) -> None:
        self._number = 0

    def say(self, sender: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {
            "protocol": "agh-network/v0",
            "id": f"msg_{self._number}",
            "workspace_id": "ws_local",
            "kind": "say",
            "channel": "default",
            "surface": "thread",
            "thread_id": "thread_one",
            "from": sender,
            "to": "ops",
            "ts": int(time.time()),
            "body": {"text": "hello"},
            **fields,
        }

    def discovery(self, sender: str, kind: str, body: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        """A greet or whois."""
        document = self.say(sender, kind=kind, body=body, **{"to": None, **fields})
        del document["surface"], document["thread_id"]
        return document

    def signed(self, signer: EnvelopeSigner, **fields: Any) -> dict[str, Any]:
        return signer(self.say(signer.handle, **fields))

    def forged(self, sender: str, **fields: Any) -> dict[str, Any]:
        """With the name `sender` and a signature of FRIEND that is not of this envelope."""
        document = self.say(sender, **fields)
        return {**document, "proof": self.signed(FRIEND)["proof"]}


class Bench(Messages):
    """The parts of a daemon whose intake the test feeds and empties."""

    def __init__(self, parts: DaemonParts) -> None:
        super().__init__()
        self.parts = parts
        self.intake = parts.intake
        self.committer = parts.committer
        self.store = parts.store
        self.counters = parts.counters

    def take(
        self,
        *documents: dict[str, Any],
        settlement: Settlement | None = None,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Offer all of `documents` before the first is committed."""
        for document in documents:
            subject = subject_for("ws_local", "default", document["to"])
            self.intake.offer(InboundMessage(subject, json.dumps(document).encode(), reply, headers, settlement))

    async def commit(self) -> None:
        """Commit everything in the queue."""
        await empty_queue(self.committer)

    async def offer(self, document: dict[str, Any], settlement: Settlement | None = None, reply: str = "") -> None:
        self.take(document, settlement=settlement, reply=reply)
        await self.commit()

    async def flush(self) -> None:
        """Commit pending discovery."""
        self.parts.write_behind.flush()
        await self.store.write(lambda tx: None)

    async def admit(self, *peers: str) -> None:
        """The operator makes these peers contacts."""
        rules = [Rule("admit", "", peer, "operator", 0) for peer in peers]

        def put(tx: Transaction) -> None:
            for rule in rules:
                tx.memory.trust.put(tx, rule)

        await self.store.write(put)

    def change_settings(self, **changes: Any) -> None:
        self.parts.settings.replace(msgspec.structs.replace(self.parts.settings.current, **changes))

    async def senders(self, direction: str = "in") -> list[str]:
        rows = await self.store.reader.execute_fetchall(
            "SELECT sender FROM envelopes WHERE direction = ? ORDER BY seq", [direction]
        )
        return [row[0] for row in rows]

    async def count(self, sql: str) -> int:
        ((number,),) = await self.store.reader.execute_fetchall(sql)
        return int(number)


async def empty_queue(committer: Committer) -> None:
    """Commit everything in the queue."""
    running = asyncio.create_task(committer.run())
    drained = asyncio.create_task(committer.drained(60))
    try:
        await asyncio.wait({running, drained}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        assert await drained
    finally:
        running.cancel()
        drained.cancel()
        await asyncio.wait({running, drained})


class Stepped(Clock):
    """Wall time stands still until the test advances it."""

    def __init__(self) -> None:
        self._millis = super().millis()

    def millis(self) -> int:
        return self._millis

    def advance(self, seconds: int) -> None:
        self._millis += 1000 * seconds


class Still(Clock):
    """Monotonic time stands still, so that no budget is refilled."""

    def monotonic(self) -> float:
        return 1000.0


@asynccontextmanager
async def bench(
    folder: Path,
    clock: Clock | None = None,
    *,
    link: Link | None = None,
    signer: EnvelopeSigner | None = None,
    former: Iterable[FormerKey] = (),
    replaced: Replacements | None = None,
    **settings: Any,
) -> AsyncIterator[Bench]:
    context = daemon_context(Settings(name="ops", peer_id="ops", **settings), clock, signer, former)
    store = await Store.open(folder / "store.db", synchronous="normal")
    parts = daemon_parts(context, store, link, replaced)
    try:
        yield Bench(parts)
    finally:
        await store.close()


class Recorded:
    """The real verifier, which records the ids that it verifies, and in which threads."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.threads: set[int] = set()

    def __call__(self, envelope: Envelope) -> None:
        self.asked.append(envelope.id)
        self.threads.add(threading.get_ident())
        verify_envelope(envelope)


def spent_by(forgery: dict[str, Any]) -> float:
    """The tokens that this forgery costs, rounded up so that names and ids of other lengths cost no more."""
    return 1 + (len(json.dumps(forgery)) + 4) / BYTES_PER_TOKEN
