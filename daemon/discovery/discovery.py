"""Taking greets and whois: presence, answers to questions, conflicts of peer ids (specification, sections 2 and 7)."""

import asyncio
import logging
from functools import partial
from typing import Any, Final, Protocol

from msgspec import json

from aghbus.daemon.discovery.greeter import JOINED_KEY, Greeter
from aghbus.daemon.discovery.publisher import DiscoveryPublisher
from aghbus.daemon.discovery.restored_peers import RestoredPeers
from aghbus.daemon.discovery.whois import WhoisQuestions
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.lanes import Lane
from aghbus.daemon.state.limited_peers import LimitedPeers
from aghbus.daemon.state.own_card import OwnCard
from aghbus.daemon.state.presence import PresenceTable
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.delivery.restored import RESTORED_KEY
from aghbus.protocol.agh.discovery import (
    CATALOG_KEY,
    INSTANCE_KEY,
    LAST_ANSWER_KEY,
    SUMMARY_KEY,
    rich_response,
    should_answer,
    summary_of,
    version_of,
)
from aghbus.protocol.agh.effects import AnswerWhois, Discovered
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.handover import LEAVING_KEY, load_of
from aghbus.protocol.agh.identifiers import subject_for

SMALL_CATALOG: Final = 16_384
"""Bytes of capability documents that answer a broadcast, or a peer that is not verified."""

_CONFLICTS: Final = {
    "unrelated": "another daemon uses our peer id {}: give one of them another --peer-id",
    "later": "another daemon with our peer id {} and a copy of our store or key was started after this one, and takes no messages: "
    "stop one of them",
    "earlier": "another daemon with our peer id {} and a copy of our store or key was started before this one, which takes no "
    "messages: stop one of them, or start this one with --take-over",
}


class PeerSeen(Protocol):
    """Told of each peer that joined or was not active, and of each greet of another implementation, by the peer's subject."""

    def __call__(self, subject: str, peer_id: str, *, joined: bool) -> None: ...


class Discovery:
    """What one daemon does about discovery messages of peers."""

    def __init__(
        self,
        context: DaemonContext,
        own_card: OwnCard,
        presence: PresenceTable,
        limits: RateLimits,
        limited: LimitedPeers,
        greeter: Greeter,
        questions: WhoisQuestions,
        publisher: DiscoveryPublisher,
        restored_peers: RestoredPeers,
        on_seen: PeerSeen,
    ) -> None:
        self._settings = context.settings
        self._identity = context.identity
        self._clock = context.clock
        self._counters = context.counters
        self._log_limiter = context.log_limiter
        self._own_card = own_card
        self._presence = presence
        self._limits = limits
        self._limited = limited
        self._greeter = greeter
        self._questions = questions
        self._publisher = publisher
        self._restored_peers = restored_peers
        self._on_seen = on_seen
        self._sent: PeerCard | None = None  # our card, once an envelope with it was validated
        self._response: tuple[PeerCard, dict[str, Any]] | None = None  # our card and the body of an answer with it

    def conflict(self, envelope: Envelope) -> None:
        """Another daemon uses our peer id: report it here, and by a greet to the other daemon."""
        found = self._publisher.instance.compare(envelope)
        if found == "ours":
            return
        self._counters.add("identity.conflicts")
        key, sentence = (
            ("identity", _CONFLICTS[found]) if found == "unrelated" else ("identity.copy", _CONFLICTS[found])
        )
        self._counters.problem(key, sentence.format(envelope.sender), self._clock.monotonic())
        self._log_limiter.event(
            logging.ERROR,
            "identity",
            "another daemon uses our peer id",
            peer=envelope.sender,
            workspace=envelope.workspace_id,
            channel=envelope.channel,
            id=envelope.id,
            kind=envelope.kind,
            it=found,
        )
        if envelope.sender == self._identity.self_id:
            self._greeter.answer_conflict()

    def carry_out(self, effect: Discovered | AnswerWhois, envelope: Envelope, lane: Lane) -> None:
        """Update presence, take an answer to our question, or answer the question of a peer of this lane."""
        if isinstance(effect, Discovered):
            self._discovered(effect, envelope)
        elif self._publisher.busy or not self._limits.allow_reply(envelope.sender, lane):
            self._counters.add("whois.suppressed")
            self._limited.note("answers", envelope.sender, lane, self._clock.monotonic())
        else:
            self._answer(effect.request, lane)

    def _discovered(self, effect: Discovered, envelope: Envelope) -> None:
        self._questions.note_limit(effect.card.peer_id, envelope)
        question = self._questions.find(effect.answer_to)
        if question is None:  # perhaps a late answer to a question with a filter
            self._observe(effect, envelope, filtered=CATALOG_KEY in envelope.extensions())
            return
        self._questions.answered(question, effect, envelope)
        filtered = question.ask.catalog and question.ask.capability_ids is not None
        asyncio.get_running_loop().call_soon(
            partial(self._observe, effect, envelope, filtered=filtered)
        )  # after the task that waits for the answer

    def _observe(self, effect: Discovered, envelope: Envelope, *, filtered: bool) -> None:
        """Update the presence of the sender. A `filtered` answer has some of its capabilities: it replaces no card."""
        now_ms = self._clock.millis()
        ext = envelope.extensions()
        peer = envelope.workspace_id, envelope.channel, effect.card.peer_id
        if not filtered or self._presence.knows(*peer):  # else nothing would remove the entry
            self._presence.note_acknowledging(effect.card.peer_id, INSTANCE_KEY in ext, version_of(ext))
            if envelope.kind == "greet":
                self._presence.note_load(effect.card.peer_id, load_of(ext))
                self._note_run(effect.card.peer_id, ext.get(INSTANCE_KEY))
        if ext.get(LEAVING_KEY) is True and envelope.kind == "greet":
            self._presence.leave(*peer, effect.trust)
            return
        joined = ext.get(JOINED_KEY) is True or not self._presence.is_active(envelope, now_ms)
        foreign = envelope.kind == "greet" and INSTANCE_KEY not in ext
        if foreign and (self._greeter.is_restart(envelope) or joined):  # a daemon of this project asks all peers
            joined = True
            self._greeter.peer_appeared(envelope.workspace_id, envelope.channel)
        if foreign or joined:
            subject = subject_for(envelope.workspace_id, envelope.channel, effect.card.peer_id)
            self._on_seen(subject, effect.card.peer_id, joined=joined)
        if RESTORED_KEY in ext and envelope.kind == "greet":
            self._restored_peers.greeted(effect.card.peer_id, ext)
        if filtered:
            self._presence.touch(*peer, now_ms)
        else:
            summary = summary_of(envelope.body, ext)
            self._presence.observe(envelope.workspace_id, envelope.channel, effect.card, effect.trust, now_ms, summary)

    def _note_run(self, peer_id: str, run: object) -> None:
        """Report a contact whose greets come from two daemons."""
        if isinstance(run, str) and self._presence.is_contact(peer_id) and self._presence.note_run(peer_id, run):
            sentence = f"two daemons run as the peer {peer_id}: tell its operator to stop one of them"
            self._counters.problem(f"identity.{peer_id}", sentence, self._clock.monotonic())

    def _answer(self, request: Envelope, lane: Lane) -> None:
        card = self._own_card.card()
        query = getattr(request.body, "query", "")
        if not should_answer(query, request.to, card):
            return
        self._counters["whois.answered"] += 1
        card, ext = rich_response(card, self._own_card.catalog.records, request.extensions())
        if ext and not _may_have_catalog(request) and (size := len(json.encode(ext))) > SMALL_CATALOG:
            self._counters.add("whois.catalogs_withheld")
            self._limits.replied(size, lane)  # for the work of encoding it
            card, ext = self._own_card.card(), {}  # the whole card: without a catalog nothing shows that it is filtered
        if self._response is None or self._response[0] is not card:
            self._response = card, {"type": "response", "peer_card": card.to_wire()}
        if self._limits.is_last_reply(request.sender, lane):
            ext = {**ext, LAST_ANSWER_KEY: True}  # its daemon can tell this limit from an absence
        plain = not ext
        if (summary := self._settings.current.summary) is not None:
            ext = {**ext, SUMMARY_KEY: summary}
        draft = self._publisher.draft(
            "whois",
            request.workspace_id,
            request.channel,
            self._response[1],
            to=request.sender,
            ext=ext,
            request=request,
        )
        size = self._publisher.send(draft, validated=card is self._sent and plain)
        self._limits.replied(size, lane)
        if size:
            self._sent = card


def _may_have_catalog(request: Envelope) -> bool:
    """Whether a catalog of any size may answer: a directed request of a verified peer, which nobody can make in its name."""
    return request.to is not None and "@" in request.sender
