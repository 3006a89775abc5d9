"""Discovery messages on their way out: never queued, never retried (specification, section 7)."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from aghbus.daemon.base.background import BackgroundTasks
from aghbus.daemon.nats.link import Link, LinkError
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.own_instance import OwnInstance
from aghbus.daemon.state.tags import Tags
from aghbus.host.version import VERSION
from aghbus.protocol.agh.discovery import VERSION_KEY
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.identifiers import subject_for
from aghbus.protocol.agh.limits import REPLAY_AGE
from aghbus.protocol.agh.send import Draft, build, encoded
from aghbus.protocol.agh.trust.tags import TAG
from aghbus.protocol.base.errors import InvalidRequest

Headers = Mapping[str, str] | None
TtlHeaders = Callable[[int], Headers]
"""The headers by which a stream drops a message after that many seconds; None without a stream."""


class DiscoveryPublisher:
    """Makes, signs and publishes the greets and whois of one daemon."""

    def __init__(
        self,
        context: DaemonContext,
        link: Link,
        background: BackgroundTasks,
        tags: Tags,
        instance: OwnInstance,
        ttl_headers: TtlHeaders | None,
    ) -> None:
        self.instance: Final = instance
        self._identity = context.identity
        self._clock = context.clock
        self._counters = context.counters
        self._log_limiter = context.log_limiter
        self._link = link
        self._background = background
        self._tags = tags
        self._ttl_headers: TtlHeaders = ttl_headers or (lambda _seconds: None)

    @property
    def busy(self) -> bool:
        """Whether so many messages wait for the connection that an answer should be dropped."""
        return self._background.busy

    def draft(
        self,
        kind: str,
        workspace_id: str,
        channel: str,
        body: dict[str, Any],
        *,
        to: str | None = None,
        ext: dict[str, Any] | None = None,
        request: Envelope | None = None,
    ) -> Draft:
        """A discovery envelope; `request` is the one that it answers."""
        message_id, ts = self._clock.mint(), self._clock.seconds()
        return Draft(
            id=message_id,
            workspace_id=workspace_id,
            channel=channel,
            kind=kind,
            sender=self._identity.self_id,
            to=to,
            ts=ts,
            body=body,
            reply_to=None if request is None else request.id,
            trace_id=None if request is None else request.trace_id,
            ext={**(ext or {}), **self.instance.extension(message_id, ts), VERSION_KEY: VERSION},
        )

    def encoded(self, draft: Draft, *, validated: bool) -> tuple[str, bytes, Headers]:
        """Subject, signed bytes and headers of a draft. `validated`: each part was validated before, else raises InvalidRequest."""
        signer = self._identity.signer
        raw = encoded(draft, signer) if validated else build(draft, draft.ts, signer).raw
        headers, tag = self._ttl_headers(REPLAY_AGE), self._tags.make(draft.sender, draft.to, raw)
        if tag:
            headers = {**(headers or {}), TAG: tag}
        return subject_for(draft.workspace_id, draft.channel, draft.to), raw, headers

    def send(self, draft: Draft, *, validated: bool = False) -> int:
        """Publish a draft. Returns its size in bytes, 0 when that is impossible. `validated` as for `encoded`."""
        try:
            message = self.encoded(draft, validated=validated)
            if not self._link.publish_nowait(*message):
                self._background.spawn(self._send_later(draft.kind, *message))
            self._counters[f"sent.{draft.kind}"] += 1
        except (LinkError, InvalidRequest) as error:
            self._unsent(draft.kind, error)
            return 0
        return len(message[1])

    async def _send_later(self, kind: str, subject: str, raw: bytes, headers: Headers) -> None:
        try:
            await self._link.publish(subject, raw, headers)
        except LinkError as error:
            self._unsent(kind, error)

    def _unsent(self, kind: str, error: Exception) -> None:
        self._counters.add("discovery.unsent")
        self._log_limiter.event(
            logging.WARNING, "discovery.unsent", "discovery message not sent", kind=kind, cause=str(error)
        )
