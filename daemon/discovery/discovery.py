"""Greeting, answering whois and asking it: traffic that is never queued (specification, sections 2 and 7)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from msgspec import UnsetType, json

from aghbus.daemon.base.background import BackgroundTasks
from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import EventLimiter
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.discovery.greet_back import GreetBack
from aghbus.daemon.discovery.presence_writer import PresenceWriteBehind
from aghbus.daemon.discovery.restored_peers import RestoredPeers
from aghbus.daemon.nats.link import Link, LinkError
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.limited_peers import LimitedPeers
from aghbus.daemon.state.own_card import OwnCard
from aghbus.daemon.state.presence import MAX_PEERS, PresenceTable
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.daemon.state.standing import Standing
from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.delivery.restored import RESTORED_KEY, Restored
from aghbus.protocol.agh.discovery import (
    CATALOG,
    CATALOG_KEY,
    FILTER_KEY,
    INCLUDE_KEY,
    SUMMARY_KEY,
    rich_response,
    should_answer,
    summary_of,
)
from aghbus.protocol.agh.effects import AnswerWhois, Discovered
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.identifiers import is_peer, subject_for
from aghbus.protocol.agh.limits import REPLAY_AGE
from aghbus.protocol.agh.send import Draft, build, encoded
from aghbus.protocol.api.peers import WhoisMatch, WhoisRequest, WhoisResponse
from aghbus.protocol.base.errors import InvalidRequest, Unavailable

INSTANCE_KEY: Final = (
    "aghbus.instance"  # in ext: identifies one of two daemons with the same peer id, and announces acknowledgements
)
JOINED_KEY: Final = (
    "aghbus.joined"  # in the ext of a greet after joining or returning: pending messages may be sent now
)
_JITTER: Final = 0.2  # of the greeting interval, downwards only (spec section 7)
_REGREET: Final = 5.0  # seconds between two greets that answer a conflict
_GRACE: Final = (0.01, 0.1)  # seconds, minimum and maximum, after the last expected answer
_STALL: Final = (0.1, 0.5)  # seconds without an answer, after at least one and before the first
_STALL_ROUND_TRIPS: Final = 20  # a stall lasts at least that many observed round trips

SMALL_CATALOG: Final = 16_384
"""Bytes of capability documents that answer a broadcast, or a peer that is not verified."""

TtlHeaders = Callable[[int], Mapping[str, str] | None]
"""The headers by which a stream drops a message after that many seconds; None without a stream."""


class Question:
    """A pending whois with the answers received so far."""

    def __init__(self, ask: WhoisRequest, request: Draft, started: float) -> None:
        self.ask = ask
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


class Discovery:
    """One daemon's discovery on all its channels."""

    def __init__(
        self,
        link: Link,
        identity: Identity,
        own_card: OwnCard,
        settings: LiveSettings,
        clock: Clock,
        presence: PresenceTable,
        write_behind: PresenceWriteBehind,
        limits: RateLimits,
        limited: LimitedPeers,
        counters: Counters,
        log_limiter: EventLimiter,
        background: BackgroundTasks,
        *,
        ttl_headers: TtlHeaders | None,
        instance: str,
        on_joined: Callable[[str], None],
        restored: Restored | None,
        restored_peers: RestoredPeers,
    ) -> None:
        """`instance` is the random id of this store; `on_joined` gets the subject of a peer that joined or was not active.
        `restored` is the epoch of the store, if it was restored."""
        self._link = link
        self._identity = identity
        self._own_card = own_card
        self._settings = settings
        self._clock = clock
        self._presence = presence
        self._write_behind = write_behind
        self._limits = limits
        self._limited = limited
        self._counters = counters
        self._log_limiter = log_limiter
        self._background = background
        self._ttl_headers: TtlHeaders = ttl_headers or (lambda _seconds: None)
        self._instance = instance
        self._on_joined = on_joined
        self._restored = restored
        self._restored_peers = restored_peers
        self._questions: dict[str, Question] = {}
        self._regreeted = float("-inf")
        self._greet_back = GreetBack(self._greet_on, clock)
        self._slowest = 0.0  # seconds, the slowest recent answer; decays
        self._sent: PeerCard | None = None  # our card, once an envelope with it was validated
        self._response: tuple[PeerCard, dict[str, Any]] | None = None  # our card and the body of an answer with it

    # greeting

    async def greet(self, *, joined: bool = False) -> None:
        """Announce ourselves on every channel; nothing when the link is down (the next link-up greets)."""
        for workspace_id, channel in self._identity.channels:
            self._greet_on(workspace_id, channel, joined=joined)

    def _greet_on(self, workspace_id: str, channel: str, *, joined: bool = False) -> None:
        body: dict[str, Any] = {"peer_card": self._own_card.card().to_wire()}
        if (summary := self._settings.current.summary) is not None:
            body["summary"] = summary
        ext: dict[str, Any] = {JOINED_KEY: True} if joined else {}
        if self._restored is not None and self._restored.matters(self._clock.millis()):
            ext |= self._restored.extension()
        self._send(self._draft("greet", workspace_id, channel, body, ext=ext))

    async def keep_greeting(self) -> None:
        """Greet at the configured interval, with jitter downwards, until cancelled."""
        while True:
            interval = self._settings.current.discovery.interval
            await asyncio.sleep(interval * (1 - _JITTER * self._clock.fraction()))
            if self._link.state == "up":
                await self.greet()

    async def join(self) -> None:
        """Greet, and ask all peers, so that presence is complete without waiting for their next greets."""
        await self.greet(joined=True)
        for workspace_id, channel in self._identity.channels:
            self._send(self._draft("whois", workspace_id, channel, {"type": "request", "query": ""}))

    def conflict(self, envelope: Envelope) -> None:
        """Another daemon uses our peer id: report it here, and by a greet to the other daemon."""
        if envelope.extensions().get(INSTANCE_KEY) == self._instance:
            return  # our own greet, delivered by a stream
        self._counters.add("identity.conflicts")
        sentence = f"another daemon uses our peer id {envelope.sender} in workspace {envelope.workspace_id}"
        self._counters.problem("identity", f"{sentence}: give one of them another --peer-id", self._clock.monotonic())
        self._log_limiter.event(
            logging.ERROR,
            "identity",
            "another daemon uses our peer id",
            peer=envelope.sender,
            workspace=envelope.workspace_id,
            channel=envelope.channel,
            id=envelope.id,
            kind=envelope.kind,
        )
        if envelope.sender == self._identity.self_id and self._clock.monotonic() - self._regreeted > _REGREET:
            self._regreeted = self._clock.monotonic()
            self._background.spawn(self.greet())

    # answering

    def carry_out(self, effect: Discovered | AnswerWhois, envelope: Envelope, standing: Standing) -> None:
        """Update presence, take an answer to our question, or answer the question of a peer of this standing."""
        if isinstance(effect, Discovered):
            self._discovered(effect, envelope)
        elif self._background.busy or not self._limits.allow_reply(envelope.sender, standing):
            self._counters.add("whois.suppressed")
            self._limited.note("answers", envelope.sender, standing, self._clock.monotonic())
        else:
            self._answer(effect.request, standing)

    def _discovered(self, effect: Discovered, envelope: Envelope) -> None:
        question = self._questions.get(effect.answer_to or "")
        if question is None:  # perhaps a late answer to a question with a filter
            self._observe(effect, envelope, filtered=CATALOG_KEY in envelope.extensions())
            return
        self._answered(question, effect, envelope)
        filtered = question.ask.catalog and question.ask.capability_ids is not None
        asyncio.get_running_loop().call_soon(
            partial(self._observe, effect, envelope, filtered=filtered)
        )  # after the task that waits for the answer

    def _observe(self, effect: Discovered, envelope: Envelope, *, filtered: bool) -> None:
        """Update the presence of the sender. A `filtered` answer has some of its capabilities: it replaces no card."""
        now_ms = self._clock.millis()
        ext = envelope.extensions()
        self._presence.note_acknowledging(effect.card.peer_id, INSTANCE_KEY in ext)
        appeared = not self._presence.is_active(envelope, now_ms)
        if ext.get(JOINED_KEY) is True or appeared:
            self._on_joined(subject_for(envelope.workspace_id, envelope.channel, effect.card.peer_id))
        if appeared and envelope.kind == "greet" and INSTANCE_KEY not in ext:  # a daemon of this project asks all peers
            self._greet_back.peer_appeared(envelope.workspace_id, envelope.channel)
        if RESTORED_KEY in ext and envelope.kind == "greet":
            self._restored_peers.greeted(effect.card.peer_id, ext)
        if filtered:
            self._presence.touch(envelope.workspace_id, envelope.channel, effect.card.peer_id, now_ms)
        else:
            summary = summary_of(envelope.body, ext)
            self._presence.observe(envelope.workspace_id, envelope.channel, effect.card, effect.trust, now_ms, summary)

    def _answered(self, question: Question, effect: Discovered, envelope: Envelope) -> None:
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

    def _summary(self, envelope: Envelope) -> str | None:
        """The summary of the sender: in its answer, else that of its last greet."""
        said = summary_of(envelope.body, envelope.extensions())
        if isinstance(said, UnsetType):
            return self._presence.summary_of(envelope.workspace_id, envelope.channel, envelope.sender)
        return said

    def _answer(self, request: Envelope, standing: Standing) -> None:
        card = self._own_card.card()
        query = getattr(request.body, "query", "")
        if not should_answer(query, request.to, card):
            return
        self._counters["whois.answered"] += 1
        card, ext = rich_response(card, self._own_card.catalog.records, request.extensions())
        if ext and not _may_have_catalog(request) and (size := len(json.encode(ext))) > SMALL_CATALOG:
            self._counters.add("whois.catalogs_withheld")
            self._limits.replied(size, standing)  # for the work of encoding it
            card, ext = self._own_card.card(), {}  # the whole card: without a catalog nothing shows that it is filtered
        if self._response is None or self._response[0] is not card:
            self._response = card, {"type": "response", "peer_card": card.to_wire()}
        plain = not ext
        if (summary := self._settings.current.summary) is not None:
            ext = {**ext, SUMMARY_KEY: summary}
        draft = self._draft(
            "whois",
            request.workspace_id,
            request.channel,
            self._response[1],
            to=request.sender,
            ext=ext,
            request=request,
        )
        size = self._send(draft, validated=card is self._sent and plain)
        self._limits.replied(size, standing)
        if size:
            self._sent = card

    # asking

    def whois(self, ask: WhoisRequest) -> Awaitable[WhoisResponse]:
        """Ask now. The result is known when the question has ended (see `_until`); cancelling it ends the question.

        Raises InvalidRequest, Unavailable.
        """
        question = self._question(ask)
        request = question.request
        message = (
            subject_for(request.workspace_id, request.channel, ask.to),
            encoded(request, self._identity.signer),
            self._ttl_headers(REPLAY_AGE),
        )
        try:
            if not self._link.publish_nowait(*message):
                self._background.spawn(self._ask_later(question, *message))
        except LinkError as error:
            raise _down(error) from None
        self._questions[request.id] = question
        question.answer.add_done_callback(partial(self._forget, question))
        question.expected = self._expected(question)  # computed while the peers read the question
        self._review(question)
        return question.answer

    async def _ask_later(self, question: Question, subject: str, raw: bytes, headers: Mapping[str, str] | None) -> None:
        try:
            await self._link.publish(subject, raw, headers)
        except LinkError as error:
            if not question.answer.done():
                question.answer.set_exception(_down(error))

    def _question(self, ask: WhoisRequest) -> Question:
        identity = self._identity
        channel = ask.channel or identity.channels[0][1]
        if (identity.workspace, channel) not in identity.joined:
            raise InvalidRequest(f"channel: {channel!r} is not joined by this daemon")
        if ask.to is not None and not is_peer(ask.to):
            raise InvalidRequest("to: is not a peer id")
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
        request = self._draft("whois", identity.workspace, channel, body, to=ask.to, ext=ext)
        return Question(ask, request, self._clock.monotonic())

    def _expected(self, question: Question) -> frozenset[str]:
        ask, request = question.ask, question.request
        if ask.to is not None:
            return frozenset({ask.to})
        return self._presence.expected(request.workspace_id, request.channel, ask.query, self._clock.millis())

    def _review(self, question: Question) -> None:
        """End the question, or look again when that is due, or after the next answer."""
        question.is_due = False
        if question.answer.done():
            return
        now = self._clock.monotonic()
        if question.found and question.ask.first:
            self._end(question, "first", now)
            return
        deadline = question.started + question.ask.wait
        reason, until = self._until(question)
        if now >= min(until, deadline):
            self._end(question, reason if until <= deadline else "timeout", now)
            return
        if question.timer is not None:
            question.timer.cancel()
        question.timer = asyncio.get_running_loop().call_later(min(until, deadline) - now, self._review, question)

    def _end(self, question: Question, ended: str, now: float) -> None:
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

    def _forget(self, question: Question, _answer: asyncio.Future[WhoisResponse]) -> None:
        del self._questions[question.request.id]
        if question.timer is not None:
            question.timer.cancel()

    def _until(self, question: Question) -> tuple[str, float]:
        """Why and when a question ends without a further answer: complete, after a grace time; or no answer came for a stall time
        (by observed round trips), or for `wait`."""
        round_trip = max(self._slowest, (self._link.rtt_ms() or 0.0) / 1000)
        if question.complete():
            seen = max(found.rtt_ms for found in question.found.values()) / 1000
            return "complete", question.last + min(_GRACE[1], max(_GRACE[0], 2 * seen))
        if question.ask.to is not None or (question.expected and not question.found):
            return "timeout", question.started + question.ask.wait  # an active peer should answer: wait the whole time
        least = _STALL[0] if question.found else _STALL[1]
        return "quiet", question.last + max(least, _STALL_ROUND_TRIPS * round_trip)

    # sending

    def close(self) -> None:
        """Write pending ids and presence with the next transaction, and greet nobody any more."""
        self._greet_back.close()
        self._write_behind.close()

    def _draft(
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
        clock = self._clock
        return Draft(
            id=clock.mint(),
            workspace_id=workspace_id,
            channel=channel,
            kind=kind,
            sender=self._identity.self_id,
            to=to,
            ts=clock.seconds(),
            body=body,
            reply_to=None if request is None else request.id,
            trace_id=None if request is None else request.trace_id,
            ext={**(ext or {}), INSTANCE_KEY: self._instance},
        )

    def _send(self, draft: Draft, *, validated: bool = False) -> int:
        """Publish a draft. Returns its size in bytes, 0 when that is impossible. `validated`: each part was validated before."""
        try:
            raw = (
                encoded(draft, self._identity.signer)
                if validated
                else build(draft, draft.ts, self._identity.signer).raw
            )
            message = subject_for(draft.workspace_id, draft.channel, draft.to), raw, self._ttl_headers(REPLAY_AGE)
            if not self._link.publish_nowait(*message):
                self._background.spawn(self._send_later(draft.kind, *message))
            self._counters[f"sent.{draft.kind}"] += 1
        except (LinkError, InvalidRequest) as error:
            self._unsent(draft.kind, error)
            return 0
        return len(raw)

    async def _send_later(self, kind: str, subject: str, raw: bytes, headers: Mapping[str, str] | None) -> None:
        try:
            await self._link.publish(subject, raw, headers)
        except LinkError as error:
            self._unsent(kind, error)

    def _unsent(self, kind: str, error: Exception) -> None:
        self._counters.add("discovery.unsent")
        self._log_limiter.event(
            logging.WARNING, "discovery.unsent", "discovery message not sent", kind=kind, cause=str(error)
        )


def _down(error: LinkError) -> Unavailable:
    return Unavailable(f"the broker link is down: {error}", hint="see `aghctl status`")


def _may_have_catalog(request: Envelope) -> bool:
    """Whether a catalog of any size may answer: a directed request of a verified peer, which nobody can make in its name."""
    return request.to is not None and "@" in request.sender


def _catalog_of(envelope: Envelope) -> list[dict[str, Any]]:
    catalog = envelope.extensions().get(CATALOG_KEY)
    records = catalog.get("capabilities") if isinstance(catalog, dict) else None
    return [record for record in records if isinstance(record, dict)] if isinstance(records, list) else []
