"""This daemon as a service of NATS (its ADR-32): answers to PING, INFO and STATS, so that `nats micro ls` lists it."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import json

from aghbus.daemon.nats.link import InboundMessage, Link, LinkError
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.own_card import OwnCard
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.host.version import VERSION
from aghbus.protocol.agh.identifiers import route_token
from aghbus.protocol.agh.nats.names import SERVICE, is_request_inbox, own_subjects, service_subjects
from aghbus.protocol.base.text import shorten

_MAX_CAPABILITIES: Final = 1_024  # characters of their list in an answer
_ASKING: Final = "$SRV"  # requests name no sender: all share one budget, in the lane of others


class ServiceApi:
    """The answers. `queue_group` is empty: every daemon gets every message."""

    def __init__(self, context: DaemonContext, link: Link, own_card: OwnCard, limits: RateLimits) -> None:
        self._settings = context.settings
        self._identity = context.identity
        self._counters = context.counters
        self._link = link
        self._own_card = own_card
        self._limits = limits
        self._started = datetime.fromtimestamp(context.clock.seconds(), UTC).isoformat()

    def listen(self) -> None:
        """Subscribe to requests to all services, to all of this name, and to this one."""
        for subject in service_subjects(self._identity.self_id):
            self._link.subscribe(subject, self.answer)

    def answer(self, message: InboundMessage) -> None:
        """Answer a request; without a valid verb and reply subject it is ignored."""
        answers = {"PING": ("ping", self._ping), "INFO": ("info", self._info), "STATS": ("stats", self._stats)}
        kind, make = answers.get(message.subject.split(".")[1], ("", dict))
        if not kind or not is_request_inbox(message.reply):
            return
        if not self._limits.allow_reply(_ASKING, "other"):
            self._counters.add("services.suppressed")
            return
        raw = json.encode({"type": f"io.nats.micro.v1.{kind}_response", **make()})
        with suppress(LinkError):
            self._link.publish_nowait(message.reply, raw)
            self._counters.add("services.answered")
        self._limits.replied(len(raw), "other")

    def _ping(self) -> dict[str, Any]:
        identity, card = self._identity, self._own_card.card()
        name, _, fingerprint = identity.self_id.partition("@")
        metadata = {"peer_id": identity.self_id, "display_name": card.display_name or name, "fingerprint": fingerprint}
        metadata["capabilities"] = shorten(", ".join(card.capabilities), _MAX_CAPABILITIES)
        return {"name": SERVICE, "id": route_token(identity.self_id), "version": VERSION, "metadata": metadata}

    def _info(self) -> dict[str, Any]:
        description = self._settings.current.summary or "AGH Network v0"
        return {**self._ping(), "description": description, "endpoints": self._endpoints()}

    def _stats(self) -> dict[str, Any]:
        """With a stream, messages come over its consumers: then the endpoints count none."""
        received = {one.subject: one.received for one in self._link.subscriptions}
        counts = {"num_errors": 0, "last_error": "", "processing_time": 0, "average_processing_time": 0}
        endpoints = [{**one, "num_requests": received.get(one["subject"], 0), **counts} for one in self._endpoints()]
        return {**self._ping(), "started": self._started, "endpoints": endpoints}

    def _endpoints(self) -> list[dict[str, Any]]:
        identity, observe = self._identity, self._settings.current.observe
        return [
            {
                "name": name,
                "subject": subject,
                "queue_group": "",
                "metadata": {"workspace_id": place[0], "channel": place[1]},
            }
            for place in identity.channels
            for name, subject in zip(
                ("broadcast", "peer"), own_subjects(identity.self_id, *place, observe=observe), strict=True
            )
        ]
