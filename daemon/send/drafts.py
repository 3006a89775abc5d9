"""Drafts of envelopes from API requests: container, receiver and correlation come from the work."""

from typing import Any, Final

from aghbus.daemon.base.clock import expiry
from aghbus.daemon.send.recipients import Recipients
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.own_card import OwnCard
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.identifiers import direct_id, is_emitted_work_id, is_message_id, is_peer
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.limits import MAX_LIFETIME
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.api.messages import SendRequest
from aghbus.protocol.api.work_actions import message_of
from aghbus.protocol.api.works import WorkActionRequest, WorkOpenRequest, WorkVerb
from aghbus.protocol.base.errors import InvalidRequest, Refused

_SENDABLE: Final = ("say", "capability", "receipt", "trace")


def check_size(envelope: Envelope, max_payload: int) -> None:
    """Raise InvalidRequest unless the broker takes the envelope; `max_payload` is its limit in bytes."""
    if len(envelope.raw) > max_payload:
        raise InvalidRequest(
            f"the envelope has {len(envelope.raw)} bytes, over the broker's limit of {max_payload}",
            hint="send a reference (artifacts) instead of the content, or raise max_payload of the broker",
        )


class DraftBuilder:
    """Makes drafts of requests, and fills in defaults."""

    def __init__(self, context: DaemonContext, own_card: OwnCard, recipients: Recipients) -> None:
        self._identity = context.identity
        self._settings = context.settings
        self._clock = context.clock
        self._own_card = own_card
        self._recipients = recipients

    def for_envelope(self, ask: SendRequest, work: WorkView | None, now_ms: int) -> Draft:
        """An envelope of Unix millisecond `now_ms` by its parts; the work's own container where the request names none."""
        if ask.kind not in _SENDABLE:
            raise InvalidRequest(f"kind: must be one of {', '.join(_SENDABLE)}", hint="discovery is `POST /v1/whois`")
        own_id = (self._identity.participant_in(work) if work is not None else None) or self._identity.self_id
        channel = self._channel(ask.channel or (work.channel if work else None))
        to = ask.to if ask.to is not None or work is None else work.other(own_id)
        if to is not None:
            to = to if work is not None else self._recipients.resolve(to, channel)
            if to in self._identity:
                raise InvalidRequest("to: is this daemon's own id; a message is sent to another peer")
        return self._draft(
            ask.kind,
            channel,
            ask.body,
            to,
            self._container(ask.thread_id, ask.direct, ask.direct_id, to, channel, work, own_id, now_ms),
            ask,
            own_id,
            now_ms,
            work_id=ask.work_id,
            reply_to=ask.reply_to,
            trace_id=ask.trace_id,
            causation_id=ask.causation_id,
        )

    @property
    def workspace(self) -> str:
        """The workspace of this daemon."""
        return self._identity.workspace

    def for_opening(self, ask: WorkOpenRequest, to: str) -> Draft:
        """The say or capability that opens a work for the peer `to`."""
        self_id, now_ms = self._identity.self_id, self._clock.millis()
        work_id = ask.work_id or self._clock.mint("work_", now_ms)
        if not is_emitted_work_id(work_id):
            raise InvalidRequest("work_id: must match ^work_[a-zA-Z0-9_-]{1,64}$")
        if to in self._identity:
            raise InvalidRequest("to: is this daemon's own id; a work is opened for another peer")
        kind, body = self._opening(ask)
        channel = self._channel(ask.channel)
        to = self._recipients.resolve(to, channel)
        place = self._container(ask.thread_id, ask.direct, None, to, channel, None, self_id, now_ms)
        return self._draft(
            kind,
            channel,
            body,
            to,
            place,
            ask,
            self_id,
            now_ms,
            work_id=work_id,
            trace_id=ask.trace_id,
            causation_id=ask.causation_id,
        )

    def for_work_action(
        self, work: WorkView, verb: WorkVerb, ask: WorkActionRequest, trace_id: str | None, now_ms: int
    ) -> Draft:
        """One action on a work that we take part in, at Unix millisecond `now_ms`."""
        own_id = self._identity.participant_in(work)
        other = work.target if own_id == work.initiator else work.initiator
        if own_id is None:
            if (why := self._unusable(work)) is not None:
                raise Refused(
                    f"work {work.work_id} belongs to a former identity of this daemon, whose key is not available",
                    code="actor_not_allowed",
                    hint=why,
                )
            raise Refused(
                f"work {work.work_id} belongs to {work.initiator} and {work.target}; it is only observed here",
                code="actor_not_allowed",
            )
        kind, body = message_of(work, own_id, verb, ask)
        return self._draft(
            kind,
            work.channel,
            body,
            other,
            (work.surface, work.container),
            ask,
            own_id,
            now_ms,
            work_id=work.work_id,
            reply_to=work.opening_id if kind == "receipt" else None,
            trace_id=trace_id,
            causation_id=work.opening_id,
        )

    def _unusable(self, work: WorkView) -> str | None:
        unusable = self._identity.unusable
        return unusable.get(work.initiator) or unusable.get(work.target)

    def _opening(self, ask: WorkOpenRequest) -> tuple[str, dict[str, Any]]:
        if ask.capability_id is not None:
            if ask.text is not None or ask.artifacts:
                raise InvalidRequest("capability_id: goes alone, without text and artifacts")
            return "capability", {"capability": self.capability(ask.capability_id)}
        if ask.text is None:
            raise InvalidRequest("text: is required (or capability_id)")
        body: dict[str, Any] = {"text": ask.text}
        if ask.intent:
            body["intent"] = ask.intent
        if ask.artifacts:
            body["artifacts"] = ask.artifacts
        return "say", body

    def capability(self, capability_id: str) -> dict[str, Any]:
        """The full record of one capability of our catalog."""
        for record in self._own_card.catalog.records:
            if record.id == capability_id:
                return record.document
        known = ", ".join(record.id for record in self._own_card.catalog.records) or "none"
        raise InvalidRequest(f"capability_id: {capability_id!r} is not in the catalog", hint=f"known: {known}")

    def _channel(self, channel: str | None) -> str:
        identity = self._identity
        chosen = channel or identity.channels[0][1]
        if (identity.workspace, chosen) not in identity.joined:
            joined = ", ".join(name for _, name in identity.channels)
            raise InvalidRequest(f"channel: {chosen!r} is not joined by this daemon", hint=f"joined: {joined}")
        return chosen

    def _container(
        self,
        thread_id: str | None,
        direct: bool,
        room: str | None,
        to: str | None,
        channel: str,
        work: WorkView | None,
        own_id: str,
        now_ms: int,
    ) -> tuple[str, str]:
        if direct or room is not None:
            if thread_id is not None:
                raise InvalidRequest("thread_id: a direct message belongs to no thread")
            if to is None or not is_peer(to) or to in self._identity:
                raise InvalidRequest("to: a direct room needs the other peer")
            return "direct", room or direct_id(self._identity.workspace, channel, own_id, to)
        if thread_id is not None:
            return "thread", thread_id
        if work is not None:
            return work.surface, work.container
        return "thread", self._clock.mint("thread_", now_ms)

    def _draft(
        self,
        kind: str,
        channel: str,
        body: dict[str, Any],
        to: str | None,
        place: tuple[str, str],
        ask: SendRequest | WorkOpenRequest | WorkActionRequest,
        sender: str,
        now_ms: int,
        *,
        work_id: str | None,
        reply_to: str | None = None,
        trace_id: str | None = None,
        causation_id: str | None = None,
    ) -> Draft:
        now = now_ms // 1000
        life = ask.expires_in
        if life is None:
            defaults = self._settings.current.defaults
            life = defaults.broadcast_ttl if to is None else defaults.directed_ttl
        if not 1 <= life <= MAX_LIFETIME:
            raise InvalidRequest(f"expires_in: must be 1 to {MAX_LIFETIME} seconds (7 days)")
        if ask.id is not None and not is_message_id(ask.id):
            raise InvalidRequest("id: must be 1-256 bytes without control characters or outer white space")
        # Not all by name: more than fifteen names would be passed in a dictionary.
        return Draft(
            ask.id or self._clock.mint(now_ms=now_ms),
            self._identity.workspace,
            channel,
            kind,
            sender,
            ts=now,
            body=body,
            to=to,
            surface=place[0],
            container=place[1],
            work_id=work_id,
            reply_to=reply_to,
            trace_id=trace_id,
            causation_id=causation_id,
            expires_at=min(expiry(now_ms, life), now + MAX_LIFETIME),
            ext=ask.ext,
        )
