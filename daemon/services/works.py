"""Works: opening one, its steps, and reading them."""

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial

import msgspec

from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.send.drafts import DraftBuilder
from aghbus.daemon.send.handovers import Handovers
from aghbus.daemon.send.recipients import Recipients
from aghbus.daemon.send.sender import Batch, Sender
from aghbus.daemon.services.event_stream import follow
from aghbus.daemon.services.messages import chosen_fields, secret_rules
from aghbus.daemon.services.wait_reasons import WaitReasons
from aghbus.protocol.agh.lifecycle import STANDSTILL
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.api.messages import OpenedWork, SendResponse
from aghbus.protocol.api.queries import EventsQuery, WorkQuery, WorksQuery
from aghbus.protocol.api.works import Work, WorkActionRequest, WorkOpenRequest, WorkResponse, WorksResponse, WorkVerb
from aghbus.protocol.base.errors import InvalidRequest, NotFound
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables.works import handovers, lifecycle, reads

_WORK_FIELDS = frozenset({"work_id"})


@dataclass(frozen=True, slots=True, eq=False)
class WorkService:
    """The works of one daemon."""

    store: Store
    sender: Sender
    drafts: DraftBuilder
    recipients: Recipients
    settings: LiveSettings
    notifier: Notifier
    handovers: Handovers
    reasons: WaitReasons

    def open_work(self, request: WorkOpenRequest) -> Awaitable[OpenedWork]:
        """Open a work for a peer."""
        if (request.to is None) == (request.to_capability is None):
            raise InvalidRequest("to: either `to` or `to_capability` says who gets the work")
        if request.hedge and request.to_capability is None:
            raise InvalidRequest("hedge: is for a work with `to_capability`")
        draft = None if request.to is None else self.drafts.for_opening(request, request.to)
        return self.sender.send_all(partial(self._open, request, draft))

    def _open(self, request: WorkOpenRequest, draft: Draft | None, tx: Transaction, batch: Batch) -> OpenedWork:
        handover = None
        if draft is None:
            first = None if request.id is None else batch.sent_before(self.drafts.workspace, request.id)
            if first is None or first.to is None:
                request, handover = self.handovers.addressed(tx, request)
            else:  # a repeat has the peer that was chosen
                request = self.handovers.asked(request, first.to)
            draft = self.drafts.for_opening(request, request.to or "")
        sent = batch.send(
            draft,
            repeats=None if request.id is None else chosen_fields(request),
            **secret_rules(request),
            accept_within=request.accept_within,
            progress_within=request.progress_within,
            reactions=request.reactions or self.settings.current.work.reactions,
        )
        if handover is not None:
            work = lifecycle.load(tx, sent.workspace_id, sent.channel, sent.work_id or "")
            assert work is not None
            handovers.put(tx, work, handover)
        return self._opened(sent)

    def _opened(self, sent: SendResponse) -> OpenedWork:
        return OpenedWork(**msgspec.structs.asdict(self.recipients.note(sent)))

    def act_on_work(self, work_id: str, verb: WorkVerb, request: WorkActionRequest) -> Awaitable[SendResponse]:
        """Carry out one action on a work that this daemon takes part in."""
        return self.sender.send_all(lambda tx, batch: self.act(tx, batch, work_id, verb, request))

    def act(
        self, tx: Transaction, batch: Batch, work_id: str, verb: WorkVerb, request: WorkActionRequest
    ) -> SendResponse:
        """The same in a transaction."""
        known = lifecycle.find(tx, work_id, request.channel)
        first = None if request.id is None else batch.sent_before(self.drafts.workspace, request.id)
        while known is not None and known.work.is_terminal:
            if first is not None and first.work_id == known.work.work_id:
                break  # a repeat goes to the peer that got it
            successor = handovers.successor(tx, known.work)
            if successor is None:
                break
            known = lifecycle.find(tx, successor, known.work.channel)
        if known is None:
            raise _unknown(work_id)
        draft = self.drafts.for_work_action(known.work, verb, request, known.trace_id, batch.now_ms)
        repeats = None if request.id is None else _WORK_FIELDS
        return batch.send(
            draft, repeats=repeats, allow_secrets=request.allow_secrets, replace_secrets=request.replace_secrets
        )

    async def list_works(self, query: WorksQuery) -> WorksResponse:
        """One page of works, latest change first."""
        return await reads.works(self.store.reader, query)

    async def get_work(self, work_id: str, query: WorkQuery) -> WorkResponse:
        """One work with its history, the latest of that id without a channel; after `wait`, or once it stands still. It says why
        the work does not move."""
        found = await self.find(work_id, query)
        if query.wait and _moves(found.work):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(query.wait):
                    while _moves(found.work) and not self.notifier.closed:
                        await self._standstill(found.work)
                        found = await self.find(work_id, query)
            found = await self.find(work_id, query)
        found.why = await self.reasons.of(found.work)
        return found

    async def find(self, work_id: str, query: WorkQuery) -> WorkResponse:
        """The same at once, without the reason why it does not move. Raises NotFound."""
        found = await reads.work(self.store.reader, work_id, query.channel, before=query.before)
        if found is None:
            raise _unknown(work_id)
        return found

    async def _standstill(self, work: Work) -> None:
        """Return when the work has ended or needs input, or the daemon drains."""
        wanted = EventsQuery(work_id=work.work_id, channel=work.channel)
        async with contextlib.aclosing(follow(self.store, self.notifier, work.last_seq, wanted)) as pages:
            async for page in pages:
                for event in page:
                    if event.message is None or (event.work is not None and event.work.after in STANDSTILL):
                        return


def _moves(work: Work) -> bool:
    return work.state not in STANDSTILL


def _unknown(work_id: str) -> NotFound:
    return NotFound(f"no work {work_id} is known here", hint="`aghctl work list` shows the works")
