"""Messages: sending one envelope, and reading stored envelopes, by page and as a stream."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.receive.held_back import HeldBack
from aghbus.daemon.send.drafts import DraftBuilder
from aghbus.daemon.send.recipients import Recipients
from aghbus.daemon.send.sender import Batch, Sender
from aghbus.daemon.services.event_stream import follow
from aghbus.daemon.state.own_load import OwnLoad
from aghbus.protocol.agh.envelope import fresh_until
from aghbus.protocol.api.messages import (
    DirectsResponse,
    Event,
    Message,
    MessagesResponse,
    MessageText,
    QuarantineResponse,
    SendRequest,
    SendResponse,
    ThreadsResponse,
)
from aghbus.protocol.api.queries import EventsQuery, LimitQuery, MessagesQuery, RoomsQuery
from aghbus.protocol.api.works import WorkActionRequest, WorkOpenRequest
from aghbus.protocol.base.errors import NotFound
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import envelopes, quarantine, rooms, search
from aghbus.store.tables.works import lifecycle

_CORRELATION: Final = ("work_id", "thread_id", "direct_id", "reply_to", "trace_id", "causation_id")


@dataclass(frozen=True, slots=True, eq=False)
class MessageService:
    """The messages of one daemon."""

    store: Store
    notifier: Notifier
    sender: Sender
    drafts: DraftBuilder
    recipients: Recipients
    settings: LiveSettings
    own_id: str
    held_back: HeldBack
    waiting_for: Callable[[], str | None]  # why queued messages are not published now
    own_load: OwnLoad
    shown: Callable[[Message], str]  # what a model gets of a message

    def send(self, request: SendRequest) -> Awaitable[SendResponse]:
        """Commit one envelope, which is then sent."""

        repeats = None if request.id is None else chosen_fields(request)

        def job(tx: Transaction, batch: Batch) -> SendResponse:
            known = lifecycle.find(tx, request.work_id, request.channel) if request.work_id else None
            draft = self.drafts.for_envelope(request, known.work if known else None, batch.now_ms)
            reactions = self.settings.current.work.reactions
            return self.recipients.note(
                batch.send(draft, repeats=repeats, reactions=reactions, **secret_rules(request))
            )

        return self.sender.send_all(job)

    async def list_messages(self, query: MessagesQuery) -> MessagesResponse:
        """One page of stored envelopes."""
        if query.text is not None:
            return await search.by_text(self.store.reader, query)
        return await search.messages(self.store.reader, query, since=query.since, limit=query.limit, last=query.last)

    async def get_message(self, message_id: str) -> Message:
        """One stored envelope by its id."""
        found = await envelopes.message(self.store.reader, message_id)
        if found is not None and found.delivery in ("queued", "published") and await self.store.commit_deferred():
            found = await envelopes.message(self.store.reader, message_id)
        if found is None:
            why, hint = self.held_back.explain(message_id), "`aghctl messages list` shows the messages"
            raise NotFound(why or f"no message {message_id} is stored here", hint=hint)
        if found.delivery == "queued" and not found.damaged:
            found.delivery_detail = self._until(found)
        return found

    async def get_text(self, message_id: str) -> MessageText:
        """One stored message as a model gets it."""
        return MessageText(text=self.shown(await self.get_message(message_id)))

    def _until(self, message: Message) -> str | None:
        """Why a queued message waits, and until when it is tried; None when nothing is known."""
        why = message.delivery_detail or self.waiting_for()
        if why is None:
            return None
        times = msgspec.json.decode(message.envelope, type=_Times)
        end = datetime.fromtimestamp(fresh_until(times.ts, times.expires_at), UTC)
        return f"{why}; tried until {end:%Y-%m-%dT%H:%M:%SZ}"

    async def list_threads(self, query: RoomsQuery) -> ThreadsResponse:
        """Threads, latest activity first."""
        return ThreadsResponse(threads=await rooms.threads(self.store.reader, channel=query.channel, limit=query.limit))

    async def list_directs(self, query: RoomsQuery) -> DirectsResponse:
        """The daemon's direct rooms, latest activity first."""
        found = await rooms.directs(self.store.reader, self_id=self.own_id, channel=query.channel, limit=query.limit)
        return DirectsResponse(directs=found)

    async def list_quarantine(self, query: LimitQuery) -> QuarantineResponse:
        """Refused envelopes, latest first."""
        return QuarantineResponse(quarantined=await quarantine.quarantined(self.store.reader, limit=query.limit))

    def events(self, query: EventsQuery) -> AsyncIterator[Sequence[Event]]:
        """The event stream, in pages of events that are ready together."""
        stream = follow(self.store, self.notifier, query.since, query, works=query.works)
        return self.own_load.connected(query.takes, stream) if query.takes else stream


class _Times(msgspec.Struct):
    ts: int
    expires_at: int | None = None


def secret_rules(request: SendRequest | WorkOpenRequest | WorkActionRequest) -> dict[str, bool]:
    """What the caller said about content that looks like a credential, as `Batch.send` takes it."""
    return {"allow_secrets": request.allow_secrets, "replace_secrets": request.replace_secrets}


def chosen_fields(request: SendRequest | WorkOpenRequest) -> frozenset[str]:
    """The fields of the envelope that the caller chose: with the same id and the same of these, a request is a repeat."""
    named = {field for field in _CORRELATION if getattr(request, field, None) is not None}
    return frozenset(named | {"direct_id"} if request.direct else named)
