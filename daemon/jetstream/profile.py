"""The JetStream profile of spec section 7: the stream and our consumers, checked and repaired as long as the daemon runs.

    link down ──► checking ──► attached ──► checking …      every few seconds, and immediately when a publish finds no stream

A check ensures the stream, then one durable consumer for each channel. Missing ones are created, differences are reported with the
command that changes them, failures are reported and retried. Until the stream is there everything stays in the outbox.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import event
from aghbus.daemon.base.waiting import wait_set
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.jetstream.carrier import JetStreamCarrier
from aghbus.daemon.jetstream.cleanup import StreamCleanup
from aghbus.daemon.jetstream.consumer import FLUSH_TIMEOUT, DurableConsumer
from aghbus.daemon.jetstream.stream import FULL, STREAM, StreamStatus, ensure_stream
from aghbus.daemon.nats.ack_inboxes import AckInboxes
from aghbus.daemon.nats.link import InboundMessage, JetStreamError, Link, LinkError, LinkTimeout, NoJetStream
from aghbus.protocol.agh.nats.names import inbox
from aghbus.protocol.base.backoff import Backoff

_log = logging.getLogger("aghbus.jetstream")

CHECK_INTERVAL: Final = 5.0
"""Seconds between two checks of stream and consumers: how long a deleted one can go unnoticed. Two requests and one per channel."""
_FIRST_RETRY: Final = 0.2  # seconds after a check that failed; doubled each time
_LINK_WAIT: Final = 30.0  # seconds between two checks of a link that is down; it says itself when it is up

PROBLEM: Final = "jetstream"
PROBLEM_CONFIG: Final = "jetstream.stream"
PROBLEM_PUBLISH: Final = "jetstream.publish"


class JetStreamProfile:
    """One daemon's. `run` keeps it alive and is the inbound path; `carrier` is the outbound one.

    `on_problem` gets a key and a sentence when something is wrong, again at each check while it lasts; `on_solved` gets the key
    when it is right again.
    """

    def __init__(
        self,
        link: Link,
        *,
        self_id: str,
        former: tuple[str, ...] = (),
        ack_inboxes: AckInboxes,
        channels: tuple[tuple[str, str], ...],
        settings: Settings,
        on_problem: Callable[[str, str], None],
        on_solved: Callable[[str], None],
        check_interval: float = CHECK_INTERVAL,
        flush_timeout: float = FLUSH_TIMEOUT,
    ) -> None:
        """`former` are our former ids, whose consumers stay. `channels` are `(workspace_id, channel)`. Receivers
        acknowledge in `ack_inboxes`. `flush_timeout` in seconds is how long the broker may take to begin or end a subscription.
        """
        self._link = link
        self._self_id = self_id
        self._settings = settings.jetstream
        self._on_problem = on_problem
        self._on_solved = on_solved
        self._check_interval = check_interval
        self._clock = Clock()
        self._cleanup = StreamCleanup(link)
        self._refused_since: int | None = None  # Unix second
        self._check_now = asyncio.Event()
        self._attached = asyncio.Event()
        self._stream: StreamStatus | None = None
        self._wrong: set[str] = set()
        self._draining = False
        self._leaving: list[DurableConsumer] = []
        self.consumers = tuple(
            DurableConsumer(
                link,
                peer_id=peer_id,
                workspace_id=workspace_id,
                channel=channel,
                observe=settings.observe,
                settings=settings.jetstream,
                flush_timeout=flush_timeout,
            )
            for peer_id in (self_id, *former)
            for workspace_id, channel in channels
        )
        self.carrier = JetStreamCarrier(
            link,
            ack_inboxes=ack_inboxes,
            confirm_root=f"{inbox(self_id, 'pub')}.{secrets.token_hex(12)}",
            window=settings.jetstream.publish_window,
            seconds=self._clock.seconds,
            on_refused=self._refused,
            on_accepted=self._accepted,
        )

    # state

    @property
    def attached(self) -> bool:
        """Whether envelopes come in and can go out: link up, stream there, a live consumer on every channel."""
        return self._attached.is_set() and self._link.state == "up"

    async def wait_attached(self, timeout: float) -> bool:
        """Wait until attached; False when `timeout` seconds have passed before."""
        return await wait_set(self._attached, timeout)

    def status(self) -> dict[str, object]:
        """Stream and consumers as of the last check, for people and tools."""
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
                    "pending": consumer.state.pending,
                    "ack_pending": consumer.state.ack_pending,
                    "redelivered": consumer.state.redelivered,
                }
                for consumer in self.consumers
            ],
        }

    def waiting_for(self) -> str | None:
        """Why and since when messages stay in the outbox; None while the stream takes them."""
        if self._refused_since is None:
            return None
        return f"the stream {STREAM} takes no messages since {_moment(self._refused_since)}"

    def ttl_headers(self, seconds: int) -> Mapping[str, str] | None:
        """Headers by which the stream drops a message, such as a greet, after `seconds`. None when it does not support that."""
        return {"Nats-TTL": str(max(1, seconds))} if self._stream and self._stream.has_ttl else None

    async def run(self, offer: Callable[[InboundMessage], None]) -> None:
        """Check until cancelled; errors of the broker are reported, not raised. `offer` gets every message, with a settlement."""
        self._offer = offer
        backoff = Backoff(_FIRST_RETRY, self._check_interval)
        while True:
            if not await self._link.wait_up(_LINK_WAIT):
                self._attached.clear()
                continue
            self._check_now.clear()
            if await self._checked():
                backoff.reset()
                await wait_set(self._check_now, self._check_interval)
            else:
                await asyncio.sleep(backoff.next())

    async def drain(self, timeout: float) -> None:
        """Stop receiving, within `timeout` seconds; settling and publishing continue. What is not settled is delivered again."""
        self._draining = True
        self._attached.clear()
        try:
            async with asyncio.timeout(timeout):
                await _close_all(self.consumers)
        except TimeoutError:
            return

    def link_down(self) -> None:
        """The link is lost: nothing is received or sent until the next check."""
        self._attached.clear()
        for consumer in (*self.consumers, *self._leaving):
            consumer.link_down()
        self._check_now.set()

    async def _checked(self) -> bool:
        """One check; False when something was wrong and it should soon be retried."""
        try:
            await self._check_stream()
            for consumer in () if self._draining else self.consumers:
                await self._check_consumer(consumer)
            await self._leave()
            await self._clean_up()
        except LinkError as error:
            self._failed(None if self._link.state != "up" else str(error))
            return False
        except JetStreamError as error:
            self._failed(_advice(error))
            return False
        self._solved(PROBLEM)
        if self._draining:
            return True
        if not self._attached.is_set():
            event(_log, logging.INFO, "attached to the stream", stream=STREAM, consumers=len(self.consumers))
        self._attached.set()
        return True

    async def _check_consumer(self, consumer: DurableConsumer) -> None:
        """Check one. A former id's may fail, where permissions cover only the current id: the others continue."""
        stream = self._stream.created if self._stream else ""
        if consumer.peer_id == self._self_id:
            await consumer.check(stream, self._offer)
            return
        key = f"{PROBLEM}.{consumer.name}"
        try:
            await consumer.check(stream, self._offer)
        except (JetStreamError, LinkTimeout) as error:
            self._problem(key, f"nothing is received for our former peer id {consumer.peer_id}: {error}")
        else:
            self._solved(key)

    def retire(self, peer_id: str) -> None:
        """A former id has retired: its consumers are deleted at the next check."""
        self._leaving += [consumer for consumer in self.consumers if consumer.peer_id == peer_id]
        self.consumers = tuple(consumer for consumer in self.consumers if consumer.peer_id != peer_id)
        self._check_now.set()

    async def _leave(self) -> None:
        while self._leaving:
            consumer = self._leaving[0]
            await consumer.close()
            with contextlib.suppress(JetStreamError, LinkTimeout):  # not there, or not ours to delete
                await consumer.delete()
            self._solved(f"{PROBLEM}.{consumer.name}")
            self._leaving.remove(consumer)

    async def _clean_up(self) -> None:
        """Make room in a stream that is nearly full, unless permissions leave that to the operator."""
        if self._stream is None or any(consumer.is_provisioned for consumer in self.consumers):
            return
        try:
            purged = await self._cleanup.check(self._stream, full=self._refused_since is not None)
        except (JetStreamError, LinkTimeout) as error:
            event(_log, logging.WARNING, "read messages were not purged", stream=STREAM, cause=str(error))
            return
        if purged:
            event(_log, logging.INFO, "read messages were purged", stream=STREAM, messages=purged)

    async def _check_stream(self) -> None:
        stream = await ensure_stream(self._link, self._settings)
        if self._stream is not None and self._stream.created != stream.created:
            self.carrier.shut(forget=True)
            self._cleanup.forget()
            event(_log, logging.WARNING, "the stream is another one than before", stream=STREAM, created=stream.created)
        self._stream = stream
        self.carrier.open(has_ttl=stream.has_ttl)
        if stream.problems:
            self._problem(PROBLEM_CONFIG, "; ".join(stream.problems))
        else:
            self._solved(PROBLEM_CONFIG)

    # problems

    def _failed(self, sentence: str | None) -> None:
        self._attached.clear()
        self.carrier.shut(forget=False)
        if sentence is not None:
            self._problem(PROBLEM, f"durability jetstream: {sentence}")

    def _refused(self, error: JetStreamError) -> None:
        """The stream did not take a message of the carrier."""
        self._check_now.set()
        if self._refused_since is None:
            self._refused_since = self._clock.seconds()
        why = f"it is full ({self._until()})" if error.code == FULL else str(error)
        self._problem(PROBLEM_PUBLISH, f"{self.waiting_for()}, they stay queued: {why}")

    def _until(self) -> str:
        """When a full stream has room again."""
        hint = "raise max_bytes: `nats stream edit AGH_NETWORK_V0 --max-bytes SIZE`"
        age = self._stream.max_age if self._stream else 0.0
        if self._refused_since is None or not age:
            return f"until a peer reads its messages, or {hint}"
        until = _moment(self._refused_since + int(age))
        return f"until a peer reads its messages or they expire, at the latest at {until}; or {hint}"

    def _accepted(self) -> None:
        """The stream takes messages again."""
        self._refused_since = None
        self._solved(PROBLEM_PUBLISH)

    def _problem(self, key: str, sentence: str) -> None:
        if key not in self._wrong:
            self._wrong.add(key)
            event(_log, logging.WARNING, "jetstream problem", what=sentence)
        self._on_problem(key, sentence)

    def _solved(self, key: str) -> None:
        if key in self._wrong:
            self._wrong.discard(key)
            event(_log, logging.INFO, "jetstream problem solved", what=key)
        self._on_solved(key)


def _moment(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _advice(error: JetStreamError) -> str:
    if isinstance(error, NoJetStream):
        cluster = "in a cluster more than half of the stream's servers must be up"
        return (
            f"{error} (enable JetStream on the NATS server and for our account, or set durability to core; {cluster})"
        )
    return str(error)


async def _close_all(consumers: Iterable[DurableConsumer]) -> None:
    """Close `consumers`; a link that is lost meanwhile has closed them too."""
    for result in await asyncio.gather(*(consumer.close() for consumer in consumers), return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, LinkError):
            raise result
