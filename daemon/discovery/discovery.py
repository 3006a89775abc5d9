"""Greeting, answering whois, and asking it: the part of the traffic that is never queued (spec sections 2 and 7)."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from aghbus.daemon.base.notifier import Announcer
from aghbus.daemon.discovery.presence_writer import Heard
from aghbus.daemon.nats.link import LinkError
from aghbus.daemon.state.context import Core
from aghbus.daemon.state.presence import MAX_PEERS
from aghbus.protocol.api.peers import WhoisMatch, WhoisRequest, WhoisResponse
from aghbus.protocol.bodies import PeerCard
from aghbus.protocol.discovery import CATALOG, CATALOG_KEY, FILTER_KEY, INCLUDE_KEY, rich_response, should_answer
from aghbus.protocol.effects import AnswerWhois, Discovered
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import InvalidRequest, Unavailable
from aghbus.protocol.identifiers import is_peer, subject_for
from aghbus.protocol.limits import REPLAY_AGE
from aghbus.protocol.send import Draft, build, encoded

INSTANCE_KEY: Final = "aghbus.instance"  # in ext: tells two daemons under one peer id apart, and that commits are acked
JOINED_KEY: Final = "aghbus.joined"  # in the ext of a greet on joining or coming back: what waits for us may come now
_JITTER: Final = 0.2  # of the greeting interval, downwards only (spec section 7)
_REGREET: Final = 5.0  # seconds between two greets that answer a conflict
_GRACE: Final = (0.01, 0.1)  # seconds, least and most, after the last expected answer
_STALL: Final = (0.1, 0.5)  # seconds without any answer, after at least one and before the first
_STALL_ROUND_TRIPS: Final = 20  # a stall lasts at least so many round trips as seen
_ANSWERS: Final = 1_000  # answers on their way at a time: a flood of questions to a slow broker gets no more


class Question:
    """A whois of ours that waits for answers."""

    def __init__(self, ask: WhoisRequest, request: Draft, started: float) -> None:
        self.ask = ask
        self.request = request
        self.expected: frozenset[str] = frozenset()  # peers that presence knows, and that should answer
        self.started = started
        self.last = started
        self.found: dict[str, WhoisMatch] = {}
        self.bell = Announcer(0)

    def complete(self) -> bool:
        """Everybody that presence expects has answered (nobody expected: never)."""
        return bool(self.expected) and self.expected <= self.found.keys()


class Discovery:
    """One daemon's discovery on all its channels."""

    def __init__(self, core: Core, instance: str, on_back: Callable[[str], None]) -> None:
        """`instance` is this store's own mark; `on_back` gets the subject of a peer that has joined or was not heard for long."""
        self._core = core
        self._instance = instance
        self._on_back = on_back
        self.heard = Heard(core)
        self._questions: dict[str, Question] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._regreeted = float("-inf")
        self._slowest = 0.0  # seconds, the slowest answer seen lately; decays
        self._sent: PeerCard | None = None  # our card as it has gone out, through the door of all envelopes

    # greeting

    async def greet(self, *, joined: bool = False) -> None:
        """Announce ourselves on every channel; quiet when the link is down (it greets again when it is up)."""
        for workspace_id, channel in self._core.channels:
            body: dict[str, Any] = {"peer_card": self._core.card().to_wire()}
            ext = {JOINED_KEY: True} if joined else None
            self._send(self._draft("greet", workspace_id, channel, body, ext=ext))

    async def keep_greeting(self) -> None:
        """Greet at the configured interval, with downward jitter, until cancelled."""
        while True:
            interval = self._core.settings.discovery.interval
            await asyncio.sleep(interval * (1 - _JITTER * self._core.clock.fraction()))
            if self._core.link.state == "up":
                await self.greet()

    async def join(self) -> None:
        """Greet, and ask who is there so that presence is filled without waiting for the others' next greet."""
        await self.greet(joined=True)
        for workspace_id, channel in self._core.channels:
            self._send(self._draft("whois", workspace_id, channel, {"type": "request", "query": ""}))

    def conflict(self, envelope: Envelope) -> None:
        """Another daemon uses our peer id: say so loudly, here and, by a greet that it will see, over there."""
        core = self._core
        if envelope.extensions().get(INSTANCE_KEY) == self._instance:
            return  # our own greet, come back through a stream
        core.counters.add("identity.conflicts")
        sentence = f"another daemon uses our peer id {envelope.sender} in workspace {envelope.workspace_id}"
        core.counters.problem("identity", f"{sentence}: give one of them another --peer-id", core.clock.monotonic())
        core.noise.event(40, "identity", sentence, channel=envelope.channel, id=envelope.id, kind=envelope.kind)
        if envelope.sender == core.us and core.clock.monotonic() - self._regreeted > _REGREET:
            self._regreeted = core.clock.monotonic()
            self.spawn(self.greet())

    # answering

    def carry_out(self, effect: Discovered | AnswerWhois, envelope: Envelope) -> None:
        """Presence, an answer to a question of ours, or an answer to somebody's question."""
        if isinstance(effect, Discovered):
            self._heard(effect, envelope)
        elif self.busy or not self._core.flood.may_tell(envelope.sender):
            self._core.counters.add("whois.suppressed")
        else:
            self._answer(effect.request)

    def _heard(self, effect: Discovered, envelope: Envelope) -> None:
        question = self._questions.get(effect.answer_to or "")
        if question is None:
            self._note(effect, envelope)
            return
        self._answered(question, effect, envelope)
        asyncio.get_running_loop().call_soon(self._note, effect, envelope)  # behind whoever waits for the answer

    def _note(self, effect: Discovered, envelope: Envelope) -> None:
        """The sender is there."""
        core = self._core
        now_ms = core.clock.millis()
        ext = envelope.extensions()
        core.roster.note_acknowledging(effect.card.peer_id, INSTANCE_KEY in ext)
        if ext.get(JOINED_KEY) is True or not core.roster.is_active(envelope, now_ms):
            self._on_back(subject_for(envelope.workspace_id, envelope.channel, effect.card.peer_id))
        peer = core.roster.heard(envelope.workspace_id, envelope.channel, effect.card, effect.trust, now_ms)
        self.heard.save((peer.workspace_id, peer.channel, peer.peer_id))

    def _answered(self, question: Question, effect: Discovered, envelope: Envelope) -> None:
        if (envelope.workspace_id, envelope.channel) != (question.request.workspace_id, question.request.channel):
            return
        question.last = self._core.clock.monotonic()
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
                capabilities=_catalog_of(envelope) if question.ask.catalog else None,
            ),
        )
        question.bell.ring()

    def _answer(self, request: Envelope) -> None:
        core = self._core
        card = core.card()
        query = getattr(request.body, "query", "")
        if not should_answer(query, request.to, card):
            return
        core.counters.add("whois.answered")
        card, ext = rich_response(card, core.catalog.records, request.extensions())
        body = {"type": "response", "peer_card": card.to_wire()}
        draft = self._draft(
            "whois", request.workspace_id, request.channel, body, to=request.sender, ext=ext, request=request
        )
        if self._send(draft, passed=card is self._sent and not ext):
            self._sent = card

    # asking

    async def whois(self, ask: WhoisRequest) -> WhoisResponse:
        """Ask, and wait as long as it makes sense: see `_wait`. Raises InvalidRequest, Unavailable."""
        question = self._question(ask)
        request, link = question.request, self._core.link
        message = (
            subject_for(request.workspace_id, request.channel, ask.to),
            encoded(request, self._core.signer),
            self._core.ttl_headers(REPLAY_AGE),
        )
        self._questions[request.id] = question
        try:
            if not link.publish_nowait(*message):
                await link.publish(*message)
            question.expected = self._expected(question)  # a look at every peer, while they read the question
            ended = await self._wait(question)
        except LinkError as error:
            raise Unavailable(f"the broker link is down: {error}", hint="see `aghctl status`") from None
        finally:
            del self._questions[request.id]
        return WhoisResponse(
            request_id=request.id,
            query=ask.query,
            peers=list(question.found.values()),
            expected=len(question.expected),
            elapsed_ms=round((self._core.clock.monotonic() - question.started) * 1000, 3),
            ended=ended,
        )

    def _question(self, ask: WhoisRequest) -> Question:
        core = self._core
        channel = ask.channel or core.channels[0][1]
        if (core.workspace, channel) not in core.joined:
            raise InvalidRequest(f"channel: {channel!r} is none of the channels joined here")
        if ask.to is not None and not is_peer(ask.to):
            raise InvalidRequest("to: is not a peer id")
        if ask.to == core.us:
            raise InvalidRequest(
                "to: that is ourselves", hint="`aghctl status` and `aghctl capability list` show our own card"
            )
        ext: dict[str, Any] = {}
        if ask.catalog:
            ext[INCLUDE_KEY] = [CATALOG]
            if ask.capability_ids is not None:
                ext[FILTER_KEY] = ask.capability_ids
        body = {"type": "request", "query": ask.query}
        request = self._draft("whois", core.workspace, channel, body, to=ask.to, ext=ext)
        return Question(ask, request, core.clock.monotonic())

    def _expected(self, question: Question) -> frozenset[str]:
        ask, request, core = question.ask, question.request, self._core
        if ask.to is not None:
            return frozenset({ask.to})
        return core.roster.expected(request.workspace_id, request.channel, ask.query, core.clock.millis())

    async def _wait(self, question: Question) -> str:
        """Until complete plus a grace, or quiet for a stall that adapts to the round trips seen, or the time is up."""
        deadline = question.started + question.ask.wait
        while True:
            now = self._core.clock.monotonic()
            if question.found and question.ask.first:
                return "first"
            reason, until = self._until(question)
            if now >= min(until, deadline):
                return reason if until <= deadline else "timeout"
            await question.bell.wait(min(until, deadline) - now)

    def _until(self, question: Question) -> tuple[str, float]:
        round_trip = max(self._slowest, (self._core.link.rtt_ms() or 0.0) / 1000)
        if question.complete():
            seen = max(found.rtt_ms for found in question.found.values()) / 1000
            return "complete", question.last + min(_GRACE[1], max(_GRACE[0], 2 * seen))
        if question.ask.to is not None or (question.expected and not question.found):
            return "timeout", question.started + question.ask.wait  # one is known to be there: give it all the time
        least = _STALL[0] if question.found else _STALL[1]
        return "quiet", question.last + max(least, _STALL_ROUND_TRIPS * round_trip)

    # plumbing

    @property
    def busy(self) -> bool:
        """Whether so many answers are on their way that another one is better left out."""
        return len(self._tasks) >= _ANSWERS

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something short in the background, and keep it alive until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, timeout: float) -> None:
        """Wait for what is still being answered, `timeout` seconds at most; a broker that stands still must not hold us up."""
        self.heard.flush()
        tasks = set(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
        """`request` is what it answers."""
        clock = self._core.clock
        return Draft(
            id=clock.mint(),
            workspace_id=workspace_id,
            channel=channel,
            kind=kind,
            sender=self._core.us,
            to=to,
            ts=clock.seconds(),
            body=body,
            reply_to=None if request is None else request.id,
            trace_id=None if request is None else request.trace_id,
            ext={**(ext or {}), INSTANCE_KEY: self._instance},
        )

    def _send(self, draft: Draft, *, passed: bool = False) -> bool:
        """Whether it goes out. `passed`: each part of it has gone out before."""
        core = self._core
        try:
            raw = encoded(draft, core.signer) if passed else build(draft, draft.ts, core.signer).raw
            message = subject_for(draft.workspace_id, draft.channel, draft.to), raw, core.ttl_headers(REPLAY_AGE)
            if not core.link.publish_nowait(*message):
                self.spawn(self._send_later(draft.kind, *message))
            core.counters.add(f"sent.{draft.kind}")
        except (LinkError, InvalidRequest) as error:
            self._unsent(draft.kind, error)
            return False
        return True

    async def _send_later(self, kind: str, subject: str, raw: bytes, headers: Mapping[str, str] | None) -> None:
        try:
            await self._core.link.publish(subject, raw, headers)
        except LinkError as error:
            self._unsent(kind, error)

    def _unsent(self, kind: str, error: Exception) -> None:
        self._core.counters.add("discovery.unsent")
        self._core.noise.event(30, "discovery.unsent", "not sent", kind=kind, cause=str(error))


def _catalog_of(envelope: Envelope) -> list[dict[str, Any]]:
    catalog = envelope.extensions().get(CATALOG_KEY)
    records = catalog.get("capabilities") if isinstance(catalog, dict) else None
    return [record for record in records if isinstance(record, dict)] if isinstance(records, list) else []
