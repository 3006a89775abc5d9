"""Rows of the outbox and a receiver for tests of the JetStream profile, and the state of streams and consumers on the broker."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from aghbus.daemon.config.settings import JetStreamSettings, Settings
from aghbus.daemon.jetstream.profile import JetStreamProfile
from aghbus.daemon.jetstream.stream import STREAM
from aghbus.daemon.nats.ack_inboxes import AckInboxes
from aghbus.daemon.nats.link import InboundMessage, JetStreamError, Link
from aghbus.protocol.agh.identifiers import route_token, subject_for
from aghbus.protocol.agh.nats.names import durable_name, inbox
from aghbus.store.tables.outbox import Outgoing
from tests.support.links import to, up
from tests.support.natsutil import NatsServer, wait_until

WORKSPACE = "ws_test"
CHANNEL = "builders"


def row(seq: int, to: str | None = None, *, raw: bytes = b"", attempts: int = 0) -> Outgoing:
    """Envelope number `seq` of peer `sender`; its bytes are its number unless `raw` says otherwise."""
    return Outgoing(
        seq=seq,
        subject=subject_for(WORKSPACE, CHANNEL, to),
        workspace_id=WORKSPACE,
        sender="sender",
        recipient=to,
        message_id=f"msg_{seq}",
        expires_at=int(time.time()) + 3600,
        attempts=attempts,
        answerable=True,
        raw=raw or str(seq).encode(),
    )


class Peer:
    """A link with the profile on it. It keeps what it is offered, and settles at once unless `settles` is False."""

    def __init__(
        self,
        server: NatsServer,
        name: str,
        *,
        settings: JetStreamSettings | None = None,
        observe: bool = False,
        **more: Any,
    ) -> None:
        self.settings = settings or JetStreamSettings()
        self.settles = True
        self.messages: list[InboundMessage] = []
        self.answers: list[InboundMessage] = []
        self.problems: dict[str, str] = {}
        self.history: list[str] = []
        self.link = Link(
            to(server),
            name=name,
            inbox_prefix=inbox(name, "api"),
            on_down=lambda _link, _why: self.profile.link_down(),
        )
        ack_inboxes = AckInboxes(self.link, inbox(name, "ack"))
        ack_inboxes.open(self._answered)
        self.profile = JetStreamProfile(
            self.link,
            **{
                "self_id": name,
                "ack_inboxes": ack_inboxes,
                "channels": ((WORKSPACE, CHANNEL),),
                "settings": Settings(name=name, peer_id=name, observe=observe, jetstream=self.settings),
                "on_problem": self._problem,
                "on_solved": lambda key: self.problems.pop(key, None),
                "check_interval": 0.2,
                **more,
            },
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def texts(self) -> list[str]:
        """Payloads in order of arrival."""
        return [message.data.decode() for message in self.messages]

    def _offered(self, message: InboundMessage) -> None:
        self.messages.append(message)
        if self.settles:
            assert message.settlement is not None
            message.settlement.ack()

    def _answered(self, message: InboundMessage) -> int:
        self.answers.append(message)
        return 1

    def _problem(self, key: str, sentence: str) -> None:
        self.problems[key] = sentence
        if sentence not in self.history:
            self.history.append(sentence)

    @contextlib.asynccontextmanager
    async def running(self, *, attached: bool = True) -> AsyncIterator["Peer"]:
        """Link and profile up, and down at the end."""
        self.link.start()
        self._task = asyncio.create_task(self.profile.run(self._offered))
        try:
            if attached:
                assert await self.profile.wait_attached(15), self.problems
            yield self
        finally:
            await self.profile.drain(1)
            await self.cut()

    async def cut(self) -> None:
        """Close the link without settling: pending messages stay unsettled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.link.close(1)

    async def has(self, count: int, timeout: float = 15) -> None:
        """Wait until `count` messages have been offered."""
        await wait_until(lambda: len(self.messages) >= count, timeout, f"{count} messages, there are {self.texts}")


class Operator:
    """JetStream's API in its own terms, over a link."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def call(self, what: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """The JSON answer to `$JS.API.<what>`. Raises JetStreamError."""
        reply = await self.link.request(f"$JS.API.{what}", json.dumps(request).encode() if request else b"", 20)
        answer: dict[str, Any] = json.loads(reply.data)
        if error := answer.get("error"):
            raise JetStreamError(error["err_code"], error["description"])
        return answer


@contextlib.asynccontextmanager
async def admin(server: NatsServer) -> AsyncIterator[Operator]:
    """An operator on a link of its own."""

    async with up(Link(to(server), name="admin")) as link:
        yield Operator(link)


async def stream_info(api: Operator) -> dict[str, Any]:
    return await api.call(f"STREAM.INFO.{STREAM}")


async def consumer_info(api: Operator, peer: str) -> dict[str, Any]:
    return await api.call(f"CONSUMER.INFO.{STREAM}.{durable_name(WORKSPACE, CHANNEL, route_token(peer))}")


async def settled(api: Operator, peer: str) -> None:
    """Wait until the broker knows that `peer` has settled everything."""
    deadline = asyncio.get_running_loop().time() + 15
    while (info := await consumer_info(api, peer))["num_ack_pending"] or info["num_pending"]:
        assert asyncio.get_running_loop().time() < deadline, info
        await asyncio.sleep(0.01)
