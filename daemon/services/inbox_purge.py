"""Purging the inbox: an operator removes the unread messages and the works of one sender, or of all that are no contacts."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.state.lanes import Lanes
from aghbus.protocol.agh.bodies import receipt_body
from aghbus.protocol.agh.identifiers import is_key_id, is_peer
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.trust.policy import identity_of
from aghbus.protocol.api.inbox import InboxPurgeRequest, InboxPurgeResponse
from aghbus.protocol.base.errors import InvalidRequest
from aghbus.store.audit import events as audit
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import inbox_purge
from aghbus.store.tables.inbox_purge import REASON, Purged
from aghbus.store.tables.outbox import Outgoing
from aghbus.store.tables.works import lifecycle, open_works
from aghbus.store.tables.works.open_works import Waiting

_REFUSED: Final = "refused by the operator"
_STEP: Final = 64  # messages or works purged in one transaction: some milliseconds of the event loop


@dataclass(frozen=True, slots=True, eq=False)
class InboxPurge:
    """Purges the inbox of one daemon."""

    clock: Clock
    store: Store
    lanes: Lanes
    closer: WorkCloser
    publisher: Publisher
    notifier: Notifier

    async def purge(self, request: InboxPurgeRequest) -> InboxPurgeResponse:
        """Make the unread messages of a sender dead, leased ones included, and close the works that they opened, and those of
        the sender that were not accepted.

        What arrives meanwhile is not purged; a dry run only counts. Raises InvalidRequest, StoreUnavailable.
        """
        return await self._purge(request, REASON)

    async def refuse(self, sender: str, *, dry_run: bool = False) -> InboxPurgeResponse:
        """The same of a sender that is denied from now on."""
        return await self._purge(InboxPurgeRequest(sender=sender, dry_run=dry_run), _REFUSED)

    async def _purge(self, request: InboxPurgeRequest, why: str) -> InboxPurgeResponse:
        matches = self._matcher(request)
        memory = self.store.memory.inbox
        unread = {*memory.messages.senders, *memory.reactions.senders}
        senders = [sender for sender in unread if matches(sender)]
        answer = InboxPurgeResponse(messages=0, works=0)
        seqs = await inbox_purge.waiting(self.store.reader, memory.untouched()) if senders else []
        if request.dry_run:
            messages, opened = await inbox_purge.preview(self.store.reader, seqs, senders)
            unaccepted = await open_works.unaccepted(self.store.reader)
            opened |= {(one.workspace_id, one.channel, one.work_id) for one in unaccepted if matches(one.initiator)}
            return InboxPurgeResponse(messages=messages, works=len(opened))
        for start in range(0, len(seqs), _STEP):
            job = partial(self._step, seqs=seqs[start : start + _STEP], senders=senders, why=why)
            messages, closed = await self.store.write(job)
            answer.messages += messages
            answer.works += closed
        waiting = [work for work in await open_works.unaccepted(self.store.reader) if matches(work.initiator)]
        for start in range(0, len(waiting), _STEP):
            answer.works += await self.store.write(partial(self._close_all, waiting=waiting[start : start + _STEP]))
        what = "others" if request.sender is None else request.sender
        text = f"{what}: {answer.messages} messages, {answer.works} works"
        await self.store.write(lambda tx: audit.note_policy(tx, self.clock.millis(), "inbox_purged", text))
        return answer

    def _publish(self, tx: Transaction, rows: list[Outgoing]) -> int:
        """Publish what closes works after the commit. Returns how many."""
        if rows:
            tx.after_commit(partial(self.publisher.enqueue, rows))
            tx.after_commit(partial(self.notifier.notify, rows[-1].seq))
        return len(rows)

    def _close_all(self, tx: Transaction, waiting: list[Waiting]) -> int:
        rows: list[Outgoing] = []
        for one in waiting:
            work = lifecycle.load(tx, one.workspace_id, one.channel, one.work_id)
            if work is not None and not work.is_terminal and open_works.is_unaccepted(tx, work):
                rows += self.closer.close(
                    tx, work, "receipt", receipt_body(work.opening_id, "rejected", "busy", REASON)
                )
        return self._publish(tx, rows)

    def _step(self, tx: Transaction, seqs: list[int], senders: list[str], why: str) -> tuple[int, int]:
        purged = inbox_purge.purge(tx, seqs, senders, why)
        rows: list[Outgoing] = []
        for message in purged:
            audit.note_delivery(tx, self.clock.millis(), message.seq, "purged")
            rows += self._close(tx, message, why)
        return len(purged), self._publish(tx, rows)

    def _close(self, tx: Transaction, message: Purged, why: str) -> list[Outgoing]:
        """End the work that the message opened: the agent does not know of it, and its peer would wait for it."""
        if message.work_id is None:
            return []
        work = lifecycle.load(tx, message.workspace_id, message.channel, message.work_id)
        if work is None or work.is_terminal or work.opening_id != message.msg_id:
            return []
        return self.closer.close(tx, work, "receipt", _closing(work, why))

    def _matcher(self, request: InboxPurgeRequest) -> Callable[[str], bool]:
        """Whether a sender is purged. Only a verified message is delivered in the name of a handle."""
        wanted = request.sender
        if (wanted is None) != request.others:
            raise InvalidRequest("exactly one of sender and others is required")
        if wanted is None:
            return lambda sender: not self.lanes.is_contact(sender)
        if not is_peer(wanted) and not is_key_id(wanted):
            raise InvalidRequest("sender: must be a peer id, a handle or a key id")
        return lambda sender: identity_of(sender) == identity_of(wanted)


def _closing(work: WorkView, why: str) -> dict[str, Any]:
    """A work that nobody has accepted is rejected, another one canceled."""
    if work.state == "submitted":
        return receipt_body(work.opening_id, "rejected", "verification_failed" if why == _REFUSED else "busy", why)
    return receipt_body(work.opening_id, "canceled", detail=why)
