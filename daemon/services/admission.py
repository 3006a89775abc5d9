"""Peers that wait for admission: listing them, and telling the initiator of a work that it waits (docs/trust.md, Admission), or
that it was released after a restore."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.state.lanes import Lanes
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.api.inbox import InboxItem
from aghbus.protocol.api.messages import Message
from aghbus.protocol.api.queries import LimitQuery
from aghbus.protocol.api.trust import AdmissionRequest, AdmissionRequestsResponse
from aghbus.protocol.base.text import shorten
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import inbox_list
from aghbus.store.tables.inbox_list import WaitingSender
from aghbus.store.tables.outbox import Outgoing
from aghbus.store.tables.works import lifecycle

_TEXT_CHARACTERS: Final = 200  # of the first words


class _Body(msgspec.Struct):
    text: Any = None
    capability: Any = None


class _Envelope(msgspec.Struct):
    body: _Body
    proof: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """What others ask of the agent of one daemon."""

    store: Store
    lanes: Lanes
    limits: RateLimits
    closer: WorkCloser
    publisher: Publisher
    notifier: Notifier

    async def list_requests(self, query: LimitQuery) -> AdmissionRequestsResponse:
        """The peers that were not admitted and have unread messages, the one that has waited longest first."""
        memory = self.store.memory.inbox
        others = [sender for sender in memory.messages.senders if not self.lanes.is_contact(sender)]
        if not others:
            return AdmissionRequestsResponse(requests=[], more=0)
        found, more = await inbox_list.by_sender(self.store.reader, memory.untouched(), others, query.limit)
        return AdmissionRequestsResponse(requests=list(map(_request, found)), more=more)

    def answer(self, tx: Transaction, item: InboxItem) -> None:
        """Tell the initiator of the work that `item` opened that it waits for admission: once, and within the limits of automatic
        receipts."""
        work = _opened_by(tx, item)
        if work is not None and self.limits.allow_receipt(tx, work.initiator, "other"):
            self._publish(tx, self.closer.say_that_it_waits(tx, work))

    def tell_release(self, tx: Transaction, item: InboxItem) -> None:
        """Tell the initiator of the work that `item` opened that it is not held any more; one that was not admitted is told that it
        waits for that, once a worker leaves it."""
        work = _opened_by(tx, item)
        if work is not None and self.lanes.is_contact(work.initiator):
            self._publish(tx, self.closer.say_that_it_is_released(tx, work))

    def _publish(self, tx: Transaction, rows: list[Outgoing]) -> None:
        if rows:
            tx.after_commit(partial(self.publisher.enqueue, rows))
            tx.after_commit(partial(self.notifier.notify, rows[-1].seq))


def _opened_by(tx: Transaction, item: InboxItem) -> WorkView | None:
    """The open work that `item` opened."""
    message = item.message
    if message.outcome != "opened" or message.work_id is None:
        return None
    work = lifecycle.load(tx, message.workspace_id, message.channel, message.work_id)
    return None if work is None or work.is_terminal else work


def _request(waiting: WaitingSender) -> AdmissionRequest:
    first = waiting.first
    envelope = _Envelope(_Body()) if first.damaged else msgspec.json.decode(first.envelope, type=_Envelope)
    verified = first.trust == "verified" and isinstance(envelope.proof, dict)
    return AdmissionRequest(
        peer=first.sender,
        key_id=envelope.proof["key_id"] if verified else None,
        trust="verified" if verified else "unverified",
        messages=waiting.messages,
        openings=waiting.openings,
        since_ms=first.received_ms,
        text=shorten(_words(first, envelope.body), _TEXT_CHARACTERS),
    )


def _words(message: Message, body: _Body) -> str:
    if isinstance(body.text, str):
        return body.text
    record = body.capability
    return str(record.get("id")) if isinstance(record, dict) else message.kind
