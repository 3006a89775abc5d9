"""Asking who is there: pending questions, and when each ends (specification, sections 2 and 7)."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, Final

from msgspec import UnsetType

from aghbus.daemon.base.background import BackgroundTasks
from aghbus.daemon.discovery.publisher import DiscoveryPublisher, Headers
from aghbus.daemon.nats.link import Link, LinkError
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.presence import MAX_PEERS, PresenceTable
from aghbus.protocol.agh.discovery import (
    CATALOG,
    CATALOG_KEY,
    FILTER_KEY,
    INCLUDE_KEY,
    LAST_ANSWER_KEY,
    summary_of,
)
from aghbus.protocol.agh.effects import Discovered
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.identifiers import PEER_RULE, is_peer
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.api.peers import WHOIS_SECONDS, WhoisMatch, WhoisRequest, WhoisResponse
from aghbus.protocol.base.errors import InvalidRequest, Unavailable

_LONGEST: Final = 5.0  # seconds of one question that is asked again
_AGAIN: Final = 1.0  # seconds between two questions, so that a peer that has just joined gets one
_GRACE: Final = (0.01, 0.1)  # seconds, minimum and maximum, after the last expected answer
_STALL: Final = (0.1, 0.5)  # seconds without an answer, after at least one and before the first
_LIMITED: Final = 60.0  # seconds for which a peer is taken to limit its answers after one that said so
_STALL_ROUND_TRIPS: Final = 20  # a stall lasts at least that many observed round trips


class PendingWhois:
    """A pending whois with the answers received so far."""

    def __init__(self, ask: WhoisRequest, wait: float, request: Draft, started: float) -> None:
        self.ask = ask
        self.wait = wait
        self.request = request
        self.expected: frozenset[str] = frozenset()  # active peers that should answer
        self.started = started
        self.last = started
        self.found: dict[str, WhoisMatch] = {}
        self.answer: asyncio.Future[WhoisResponse] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.is_due = False  # it will be reviewed in the next turn of the loop

    def complete(self) -> bool:
        """Whether every expected peer has answered (never, if none is expected)."""
        return bool(self.expected) and self.expected <= self.found.keys()


class WhoisQuestions:
    """The pending questions of one daemon."""

    def __init__(
        self,
        context: DaemonContext,
        link: Link,
        background: BackgroundTasks,
        presence: PresenceTable,
        publisher: DiscoveryPublisher,
    ) -> None:
        self._identity = context.identity
        self._clock = context.clock
        self._link = link
        self._background = background
        self._presence = presence
        self._publisher = publisher
        self._pending: dict[str, PendingWhois] = {}
        self._slowest = 0.0  # seconds, the slowest recent answer; decays
        self._limited: dict[str, float] = {}  # until when peers are taken to limit their answers, by peer id

    def find(self, request_id: str | None) -> PendingWhois | None:
        """The pending question with this id."""
        return self._pending.get(request_id or "")

    def whois(self, ask: WhoisRequest) -> Awaitable[WhoisResponse]:
        """Ask now, and with `wait` again until somebody answers. Cancelling the result ends the question.

        Raises InvalidRequest, Unavailable.
        """
        if ask.wait is None:
            return self._once(ask, WHOIS_SECONDS)
        return asyncio.ensure_future(self._until_answered(ask, ask.wait, self._once(ask, min(ask.wait, _LONGEST))))

    async def _until_answered(
        self, ask: WhoisRequest, wait: float, question: Awaitable[WhoisResponse]
    ) -> WhoisResponse:
        started = asked = self._clock.monotonic()
        while True:
            answer, now = await question, self._clock.monotonic()
            if answer.peers or now >= started + wait:
                answer.elapsed_ms = round((now - started) * 1000, 3)
                return answer
            await asyncio.sleep(max(0.0, min(asked + _AGAIN, started + wait) - now))
            asked = self._clock.monotonic()
            question = self._once(ask, min(max(0.0, started + wait - asked), _LONGEST))

    def _once(self, ask: WhoisRequest, wait: float) -> Awaitable[WhoisResponse]:
        """One question. The result is known when it has ended (see `_until`)."""
        question = self._question(ask, wait)
        request = question.request
        message = self._publisher.encoded(request, validated=True)
        try:
            if not self._link.publish_nowait(*message):
                self._background.spawn(self._ask_later(question, *message))
        except LinkError as error:
            raise _down(error) from None
        self._pending[request.id] = question
        question.answer.add_done_callback(partial(self._forget, question))
        question.expected = self._expected(question)  # computed while the peers read the question
        self._review(question)
        return question.answer

    async def _ask_later(self, question: PendingWhois, subject: str, raw: bytes, headers: Headers) -> None:
        try:
            await self._link.publish(subject, raw, headers)
        except LinkError as error:
            if not question.answer.done():
                question.answer.set_exception(_down(error))

    def _question(self, ask: WhoisRequest, wait: float) -> PendingWhois:
        identity = self._identity
        channel = ask.channel or identity.channels[0][1]
        if (identity.workspace, channel) not in identity.joined:
            raise InvalidRequest(f"channel: {channel!r} is not joined by this daemon")
        if ask.to is not None and not is_peer(ask.to):
            raise InvalidRequest(f"to: {PEER_RULE}", hint="`aghctl peers` lists the known ones")
        if ask.to == identity.self_id:
            raise InvalidRequest(
                "to: is this daemon's own id", hint="`aghctl status` and `aghctl capability list` show our own card"
            )
        ext: dict[str, Any] = {}
        if ask.catalog:
            ext[INCLUDE_KEY] = [CATALOG]
            if ask.capability_ids is not None:
                ext[FILTER_KEY] = ask.capability_ids
        body = {"type": "request", "query": ask.query}
        request = self._publisher.draft("whois", identity.workspace, channel, body, to=ask.to, ext=ext)
        return PendingWhois(ask, wait, request, self._clock.monotonic())

    def _expected(self, question: PendingWhois) -> frozenset[str]:
        ask, request = question.ask, question.request
        if ask.to is not None:
            return frozenset({ask.to})
        return self._presence.expected(request.workspace_id, request.channel, ask.query, self._clock.millis())

    def _review(self, question: PendingWhois) -> None:
        """End the question, or look again when that is due, or after the next answer."""
        question.is_due = False
        if question.answer.done():
            return
        now = self._clock.monotonic()
        if question.found and question.ask.first:
            self._end(question, "first", now)
            return
        deadline = question.started + question.wait
        reason, until = self._until(question)
        if now >= min(until, deadline):
            self._end(question, reason if until <= deadline else "timeout", now)
            return
        if question.timer is not None:
            question.timer.cancel()
        question.timer = asyncio.get_running_loop().call_later(min(until, deadline) - now, self._review, question)

    def _end(self, question: PendingWhois, ended: str, now: float) -> None:
        missing = question.expected - question.found.keys()
        if ended == "timeout" and any(self._limited.get(peer, now) > now for peer in missing):
            ended = "limited"
        question.answer.set_result(
            WhoisResponse(
                request_id=question.request.id,
                query=question.ask.query,
                peers=list(question.found.values()),
                expected=len(question.expected),
                elapsed_ms=round((now - question.started) * 1000, 3),
                ended=ended,
            )
        )

    def _forget(self, question: PendingWhois, _answer: asyncio.Future[WhoisResponse]) -> None:
        del self._pending[question.request.id]
        if question.timer is not None:
            question.timer.cancel()

    def _until(self, question: PendingWhois) -> tuple[str, float]:
        """Why and when a question ends without a further answer: complete, after a grace time; or no answer came for a stall time
        (by observed round trips), or for `wait`."""
        round_trip = max(self._slowest, (self._link.rtt_ms() or 0.0) / 1000)
        if question.complete():
            seen = max(found.rtt_ms for found in question.found.values()) / 1000
            return "complete", question.last + min(_GRACE[1], max(_GRACE[0], 2 * seen))
        if question.ask.to is not None or (question.expected and not question.found):
            return "timeout", question.started + question.wait  # an active peer should answer: wait the whole time
        least = _STALL[0] if question.found else _STALL[1]
        return "quiet", question.last + max(least, _STALL_ROUND_TRIPS * round_trip)

    def answered(self, question: PendingWhois, effect: Discovered, envelope: Envelope) -> None:
        """Take an answer to `question`."""
        if (envelope.workspace_id, envelope.channel) != (question.request.workspace_id, question.request.channel):
            return
        question.last = self._clock.monotonic()
        took = question.last - question.started
        self._slowest = max(took, self._slowest * 0.9)
        card = effect.card.to_wire()
        if len(question.found) >= MAX_PEERS:
            return
        question.found.setdefault(
            effect.card.peer_id,
            WhoisMatch(
                peer_id=effect.card.peer_id,
                trust=effect.trust,
                rtt_ms=round(took * 1000, 3),
                card=card,
                summary=self._summary(envelope),
                capabilities=_catalog_of(envelope) if question.ask.catalog else None,
            ),
        )
        if question.ask.first:
            self._review(question)
        elif not question.is_due:  # once for the answers that arrive together
            question.is_due = True
            asyncio.get_running_loop().call_soon(self._review, question)

    def note_limit(self, peer: str, envelope: Envelope) -> None:
        """An answer of `peer`, to whichever question, may say that it is the last one for now."""
        if envelope.extensions().get(LAST_ANSWER_KEY) is not True:
            return
        if len(self._limited) >= MAX_PEERS:
            self._limited.clear()
        self._limited[peer] = self._clock.monotonic() + _LIMITED

    def _summary(self, envelope: Envelope) -> str | None:
        """The summary of the sender: in its answer, else that of its last greet."""
        said = summary_of(envelope.body, envelope.extensions())
        if isinstance(said, UnsetType):
            return self._presence.summary_of(envelope.workspace_id, envelope.channel, envelope.sender)
        return said


def _down(error: LinkError) -> Unavailable:
    return Unavailable(f"the broker link is down: {error}", hint="see `aghctl status`")


def _catalog_of(envelope: Envelope) -> list[dict[str, Any]]:
    catalog = envelope.extensions().get(CATALOG_KEY)
    records = catalog.get("capabilities") if isinstance(catalog, dict) else None
    return [record for record in records if isinstance(record, dict)] if isinstance(records, list) else []
