"""Works: opening one, its steps, and reading them."""

from collections.abc import Awaitable
from dataclasses import dataclass

from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.send.drafts import DraftBuilder
from aghbus.daemon.send.recipients import Recipients
from aghbus.daemon.send.sender import Batch, Sender
from aghbus.daemon.services.messages import chosen_fields, secret_rules
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.api.queries import WorkQuery, WorksQuery
from aghbus.protocol.api.works import WorkActionRequest, WorkOpenRequest, WorkResponse, WorksResponse, WorkVerb
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

    def open_work(self, request: WorkOpenRequest) -> Awaitable[SendResponse]:
        """Open a work for a peer."""
        draft = self.drafts.for_opening(request)
        repeats = None if request.id is None else chosen_fields(request)

        def job(_tx: Transaction, batch: Batch) -> SendResponse:
            sent = batch.send(
                draft,
                repeats=repeats,
                **secret_rules(request),
                accept_within=request.accept_within,
                progress_within=request.progress_within,
                reactions=request.reactions or self.settings.current.work.reactions,
            )
            return self.recipients.note(sent)

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
        return await works.works(
            self.store.reader,
            states=query.states,
            role=query.role,
            peer=query.peer,
            channel=query.channel,
            limit=query.limit,
            before=query.before,
        )

    async def get_work(self, work_id: str, query: WorkQuery) -> WorkResponse:
        """One work with its history; the latest of that id without a channel."""
        found = await works.work(self.store.reader, work_id, query.channel, before=query.before)
        if found is None:
            raise _unknown(work_id)
        return found


def _unknown(work_id: str) -> NotFound:
    return NotFound(f"no work {work_id} is known here", hint="`aghctl work list` shows the works")
