"""The JetStream profile of spec section 7: the stream and our place in it, kept alive whatever happens to them.

    link down ──► looking ──► attached ──► looking …      a look every few seconds, and at once when a publish finds no stream

A look makes sure of the stream, then of one durable consumer for each channel. What is missing is made, what differs is
reported with what to change, what fails is reported and tried again. Until the stream is there everything stays in the outbox.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import event
from aghbus.daemon.config.settings import JetStreamSettings
from aghbus.daemon.jetstream.acks import Acks
from aghbus.daemon.jetstream.api import JetStreamApi, JetStreamError, NoJetStream
from aghbus.daemon.jetstream.consumer import DurableConsumer
from aghbus.daemon.jetstream.stream import STREAM, StreamState, ensure_stream
from aghbus.daemon.jetstream.transport import JetStreamCarrier
from aghbus.daemon.nats.link import InboundMessage, Link, LinkError, LinkTimeout
from aghbus.protocol.base.backoff import Backoff
from aghbus.protocol.text import escape

_log = logging.getLogger("aghbus.jetstream")

CHECK_EVERY: Final = 5.0
"""Seconds between two looks at stream and consumers: how long a deleted one can go unnoticed. Two requests and one per channel."""
_FIRST_RETRY: Final = 0.2  # seconds after a look that failed; doubled each time
_LINK_WAIT: Final = 30.0  # seconds between two looks at a link that is down; it says itself when it is up
_ACKS_WAIT: Final = 1.0  # seconds for the last acks at the end; what is not sent then is delivered again

_FULL: Final = 10077  # maximum bytes (or messages) exceeded

PROBLEM: Final = "jetstream"
PROBLEM_CONFIG: Final = "jetstream.stream"
PROBLEM_PUBLISH: Final = "jetstream.publish"


class JetStreamProfile:
    """One daemon's. `run` is its life; `carrier` and `offer` are the two ways through it.

    `on_problem` gets a key and a sentence when something is wrong, again whenever it still is at the next look; `on_solved`
    gets the key when it is right again.
    """

    def __init__(
        self,
        link: Link,
        *,
        us: str,
        former: tuple[str, ...] = (),
        instance: str,
        channels: tuple[tuple[str, str], ...],
        observe: bool,
        settings: JetStreamSettings,
        offer: Callable[[InboundMessage], None],
        answered: Callable[[InboundMessage], None],
        on_problem: Callable[[str, str], None],
        on_solved: Callable[[str], None],
        check_every: float = CHECK_EVERY,
    ) -> None:
        """`former` are our earlier ids, whose consumers go on. `channels` are `(workspace_id, channel)`;
        `instance` is the mark of our store, told from another daemon's by it.

        `offer` gets every message, with a settlement; `answered` the commit acknowledgements of receivers.
        """
        self._link = link
        self._us = us
        self._settings = settings
        self._on_problem = on_problem
        self._on_solved = on_solved
        self._check_every = check_every
        self._api = JetStreamApi(link, us)
        self._acks = Acks(link)
        self._look = asyncio.Event()
        self._attached = asyncio.Event()
        self._stream: StreamState | None = None
        self._wrong: set[str] = set()
        self._draining = False
        self._leaving: list[DurableConsumer] = []
        self._consumers = tuple(
            DurableConsumer(
                link,
                self._api,
                self._acks,
                us=peer_id,
                instance=instance,
                workspace_id=workspace_id,
                channel=channel,
                observe=observe,
                settings=settings,
                offer=offer,
            )
            for peer_id in (us, *former)
            for workspace_id, channel in channels
        )
        self.carrier = JetStreamCarrier(
            link,
            self._api,
            us=us,
            window=settings.publish_window,
            seconds=Clock().seconds,
            answered=answered,
            refused=self._refused,
            taken=lambda: self._right(PROBLEM_PUBLISH),
        )

    # state

    @property
    def attached(self) -> bool:
        """Whether envelopes come in and can go out: link up, stream there, a live consumer on every channel."""
        return self._attached.is_set() and self._link.state == "up"

    async def wait_attached(self, timeout: float) -> bool:
        """Wait until attached; False when `timeout` seconds have passed before."""
        try:
            async with asyncio.timeout(timeout):
                await self._attached.wait()
        except TimeoutError:
            return False
        return True

    def status(self) -> dict[str, object]:
        """Stream and consumers as at the last look, for people and tools."""
        stream = self._stream
        return {
            "attached": self.attached,
            "stream": STREAM,
            "messages": stream.messages if stream else None,
            "bytes": stream.bytes if stream else None,
            "max_bytes": stream.max_bytes if stream else None,
            "consumers": [
                {
                    "channel": consumer.channel,
                    "name": consumer.name,
                    "pending": consumer.place.pending,
                    "ack_pending": consumer.place.ack_pending,
                    "redelivered": consumer.place.redelivered,
                }
                for consumer in self._consumers
            ],
        }

    def passing(self, seconds: int) -> Mapping[str, str] | None:
        """Headers for what is worth nothing after `seconds`, such as a greet: the stream drops it then. None when it cannot."""
        return {"Nats-TTL": str(max(1, seconds))} if self._stream and self._stream.expires_messages else None

    # life

    async def run(self) -> None:
        """Keep everything alive until cancelled; never raises for what the broker does."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._acks.run(), name="jetstream-acks")
            tasks.create_task(self._keep_looking(), name="jetstream-looks")

    async def drain(self, timeout: float) -> None:
        """Stop receiving, within `timeout` seconds; settling and publishing go on."""
        self._draining = True
        self._attached.clear()
        try:
            async with asyncio.timeout(timeout):
                await _quietly(*(consumer.close() for consumer in self._consumers))
        except TimeoutError:
            return

    async def close(self) -> None:
        """Stop receiving, and send the last acks. What has not been settled comes again at the next start."""
        await self.drain(_ACKS_WAIT)
        if self._link.state == "up":
            await self._acks.drained(_ACKS_WAIT)
        await _quietly(self.carrier.close(), self._api.close())

    def link_down(self) -> None:
        """The link is lost: nothing comes or goes until the next look."""
        self._attached.clear()
        self._look.set()

    async def _keep_looking(self) -> None:
        backoff = Backoff(_FIRST_RETRY, self._check_every)
        while True:
            if not await self._link.wait_up(_LINK_WAIT):
                self._attached.clear()
                continue
            self._look.clear()
            if await self._looked():
                backoff.reset()
                await self._wait(self._check_every)
            else:
                await asyncio.sleep(backoff.next())

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._look.wait()
        except TimeoutError:
            return

    async def _looked(self) -> bool:
        """One look; False when something was wrong and it should soon be tried again."""
        try:
            await self._check_stream()
            for consumer in () if self._draining else self._consumers:
                await self._check_consumer(consumer)
            await self._leave()
        except LinkError as error:
            self._failed(None if self._link.state != "up" else str(error))
            return False
        except JetStreamError as error:
            self._failed(_advice(error))
            return False
        except (KeyError, TypeError, ValueError) as error:
            self._failed(f"an answer of JetStream is not understood: {escape(repr(error))}")
            return False
        self._right(PROBLEM)
        if self._draining:
            return True
        if not self._attached.is_set():
            event(_log, logging.INFO, "attached to the stream", stream=STREAM, consumers=len(self._consumers))
        self._attached.set()
        return True

    async def _check_consumer(self, consumer: DurableConsumer) -> None:
        """Make sure of one. That of a former id may fail, when the broker lets us have only our own: the others go on."""
        stream = self._stream.created if self._stream else ""
        if consumer.us == self._us:
            await consumer.check(stream)
            return
        key = f"{PROBLEM}.{consumer.name}"
        try:
            await consumer.check(stream)
        except (JetStreamError, LinkTimeout) as error:
            self._problem(key, f"nothing is received for our former peer id {consumer.us}: {error}")
        else:
            self._right(key)

    def retire(self, peer_id: str) -> None:
        """A former id has retired: its consumers are deleted at the next look."""
        self._leaving += [consumer for consumer in self._consumers if consumer.us == peer_id]
        self._consumers = tuple(consumer for consumer in self._consumers if consumer.us != peer_id)
        self._look.set()

    async def _leave(self) -> None:
        while self._leaving:
            consumer = self._leaving[0]
            await consumer.close()
            with contextlib.suppress(JetStreamError, LinkTimeout):  # not there, or not ours to delete
                await self._api.call(f"CONSUMER.DELETE.{STREAM}.{consumer.name}")
            self._right(f"{PROBLEM}.{consumer.name}")
            self._leaving.remove(consumer)

    async def _check_stream(self) -> None:
        stream = await ensure_stream(self._api, self._settings)
        if self._stream is not None and self._stream.created != stream.created:
            self.carrier.shut(forget=True)
            event(_log, logging.WARNING, "the stream is another one than before", stream=STREAM, created=stream.created)
        self._stream = stream
        self.carrier.open(expires=stream.expires_messages)
        if stream.problems:
            self._problem(PROBLEM_CONFIG, "; ".join(stream.problems))
        else:
            self._right(PROBLEM_CONFIG)

    # what is wrong

    def _failed(self, sentence: str | None) -> None:
        self._attached.clear()
        self.carrier.shut(forget=False)
        if sentence is not None:
            self._problem(PROBLEM, f"durability jetstream: {sentence}")

    def _refused(self, error: JetStreamError) -> None:
        """The carrier found that the stream does not take messages."""
        self._look.set()
        hint = "delete what is not needed, or raise max_bytes: `nats stream edit AGH_NETWORK_V0 --max-bytes SIZE`"
        why = f"it is full ({hint})" if error.code == _FULL else str(error)
        self._problem(PROBLEM_PUBLISH, f"the stream {STREAM} takes no messages, they stay queued: {why}")

    def _problem(self, key: str, sentence: str) -> None:
        if key not in self._wrong:
            self._wrong.add(key)
            event(_log, logging.WARNING, "jetstream problem", what=sentence)
        self._on_problem(key, sentence)

    def _right(self, key: str) -> None:
        if key in self._wrong:
            self._wrong.discard(key)
            event(_log, logging.INFO, "jetstream problem solved", what=key)
        self._on_solved(key)


def _advice(error: JetStreamError) -> str:
    if isinstance(error, NoJetStream):
        return f"{error} (enable JetStream on the NATS server and for our account, or set durability to core)"
    return str(error)


async def _quietly(*ends: Awaitable[None]) -> None:
    """Await all of `ends`; a link that goes meanwhile has ended them too."""
    for result in await asyncio.gather(*ends, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, LinkError):
            raise result
