"""Works: opening one, its steps, and reading them."""

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass

import msgspec

from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.send.drafts import DraftBuilder
from aghbus.daemon.send.recipients import Recipients
from aghbus.daemon.send.sender import Batch, Sender
from aghbus.daemon.services.event_stream import follow
from aghbus.daemon.services.messages import chosen_fields, secret_rules
from aghbus.protocol.agh.lifecycle import STANDSTILL
from aghbus.protocol.api.messages import OpenedWork, SendResponse
from aghbus.protocol.api.queries import EventsQuery, WorkQuery, WorksQuery
from aghbus.protocol.api.works import Work, WorkActionRequest, WorkOpenRequest, WorkResponse, WorksResponse, WorkVerb
from aghbus.protocol.base.errors import NotFound
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import works

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

    def open_work(self, request: WorkOpenRequest) -> Awaitable[OpenedWork]:
        """Open a work for a peer."""
        draft = self.drafts.for_opening(request)
        repeats = None if request.id is None else chosen_fields(request)

        def job(_tx: Transaction, batch: Batch) -> OpenedWork:
            sent = batch.send(
                draft,
                repeats=repeats,
                **secret_rules(request),
                accept_within=request.accept_within,
                progress_within=request.progress_within,
                reactions=request.reactions or self.settings.current.work.reactions,
            )
            return OpenedWork(**msgspec.structs.asdict(self.recipients.note(sent)))

        return self.sender.send_all(job)

    def act_on_work(self, work_id: str, verb: WorkVerb, request: WorkActionRequest) -> Awaitable[SendResponse]:
        """Carry out one action on a work that this daemon takes part in."""

        def job(tx: Transaction, batch: Batch) -> SendResponse:
            known = works.find(tx, work_id, request.channel)
            if known is None:
                raise _unknown(work_id)
            draft = self.drafts.for_work_action(known.work, verb, request, known.trace_id, batch.now_ms)
            repeats = None if request.id is None else _WORK_FIELDS
            return batch.send(
                draft,
                repeats=repeats,
                allow_secrets=request.allow_secrets,
                replace_secrets=request.replace_secrets,
            )

        return self.sender.send_all(job)

    async def list_works(self, query: WorksQuery) -> WorksResponse:
        """One page of works, latest change first."""
        return await works.works(self.store.reader, query)

    async def get_work(self, work_id: str, query: WorkQuery) -> WorkResponse:
        """One work with its history, the latest of that id without a channel; after `wait`, or once it stands still."""
        found = await self._found(work_id, query)
        if query.wait and _moves(found.work):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(query.wait):
                    await self._standstill(found.work)
            return await self._found(work_id, query)
        return found

    async def _found(self, work_id: str, query: WorkQuery) -> WorkResponse:
        found = await works.work(self.store.reader, work_id, query.channel, before=query.before)
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
