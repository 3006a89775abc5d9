"""The daemon's part of a sentient chain: its log entries in `ext`, the links between its works, the memory agent."""

from typing import Any, Final, NamedTuple

import msgspec

from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.formats import common
from aghbus.protocol.formats.attachments import size_of
from aghbus.protocol.formats.derived_ids import envelope_id, legal_id, thread_id, work_id
from aghbus.protocol.formats.model import BridgeContext, SubmitPlan
from aghbus.protocol.formats.sentient.log import SentientLogEntry, entries_in, memory_say, with_log
from aghbus.protocol.formats.sentient.native import CHAIN, SentientIds
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import works
from aghbus.store.tables.bridge import follow_ups
from aghbus.store.tables.bridge import messages as bridge

NAME: Final = "sentient"
CLOSED_BY: Final = f"{NAME}.closed_by"
"""In `ext` of a trace that forwards the terminal state of the next work: the id of the envelope that ended it; an array when
several branches were joined."""

LAST_MESSAGE: Final = f"{NAME}.last"
"""In `ext` of the notification of the memory agent: the chain's last message in full, since the text may be truncated."""

_LAST_BYTES: Final = 524_288  # half an envelope, so that text and entries always fit too
_LOOKED_AT: Final = 50  # newest envelopes of a work that are searched for the chain's entries


class ChainMessage(NamedTuple):
    """A message's drafts with the chain's log entries, the assigned work that it reports on, and the works that it opens."""

    drafts: tuple[Draft, ...]
    assigned: WorkView | None
    opened: tuple[tuple[str, str, str], ...]

    def link(self, tx: Transaction) -> None:
        """Link the assigned work to the works opened for the next agent: it ends when they do."""
        for key in self.opened:
            following = works.load(tx, *key)
            if following is not None:
                follow_ups.add(tx, self.assigned, following)


def of(
    tx: Transaction, context: BridgeContext, plan: SubmitPlan, *, self_id: str, memory_agent: str | None
) -> ChainMessage:
    """The chain data of a submitted message, before anything is sent."""
    record: Any = plan.record or {}
    assigned = _assigned(tx, context, plan)
    entries = entries_so_far(tx, assigned) if assigned is not None else ()
    if record:
        entries = (*entries, SentientLogEntry(record["day"], record["entry"]))
    drafts = [with_log(draft, entries) if f"{NAME}.message" in (draft.ext or {}) else draft for draft in plan.drafts]
    opened = tuple(
        (draft.workspace_id, draft.channel, draft.work_id)
        for draft in drafts
        if draft.kind == "say" and draft.work_id is not None and (assigned is None or draft.work_id != assigned.work_id)
    )
    if record and record["ends_chain"] and drafts:
        chain = ids_of(plan.message)
        notification = memory_draft(context, self_id, memory_agent, chain, plan.message, entries, drafts[-1].id)
        drafts += [notification] if notification is not None else []
    return ChainMessage(tuple(drafts), assigned, opened)


def memory_draft(
    context: BridgeContext,
    self_id: str,
    memory_agent: str | None,
    chain: SentientIds,
    message: Any,
    entries: tuple[SentientLogEntry, ...],
    ending_id: str,
) -> Draft | None:
    """The say that calls the memory agent at the end of a chain, as a work; None without a memory agent, or if it is this peer.

    Its id is derived from `ending_id`, the envelope that ended the chain, so there is one per end.
    """
    peer = memory_agent
    if peer is None or peer == self_id:
        return None
    said = envelope_id(NAME, "memory", self_id, peer, ending_id, chain.session_id)
    ext: dict[str, Any] = {CHAIN: msgspec.structs.asdict(chain)}
    if size_of(message) <= _LAST_BYTES:
        ext[LAST_MESSAGE] = message
    draft = common.say(
        context,
        peer,
        said,
        thread_id(NAME, chain.session_id),
        memory_say(message, entries),
        work_id=work_id(said),
        trace_id=legal_id(chain.request_id),
        causation_id=ending_id,
        ext=ext,
    )
    return with_log(draft, entries)


def ids_of(message: Any) -> SentientIds:
    """Session and request of a valid message."""
    metadata = message["metadata"]
    return SentientIds(metadata["session_id"], metadata["request_id"])


def entries_so_far(tx: Transaction, work: WorkView) -> tuple[SentientLogEntry, ...]:
    """The chain's log entries: the newest envelope of a work has those that came with it and those of our own reports."""
    for kept in bridge.envelopes_of_work(tx, work, _LOOKED_AT):
        if kept.direction == "out" or kept.message_id == work.opening_id:
            found = entries_in(extensions(kept.raw))
            if found:
                return found
    return ()


def extensions(raw: bytes) -> dict[str, Any]:
    """`ext` of a stored envelope."""
    ext = decode_json(raw).get("ext")
    return ext if isinstance(ext, dict) else {}


def _assigned(tx: Transaction, context: BridgeContext, plan: SubmitPlan) -> WorkView | None:
    """The assigned work that the message reports on: that of its trace."""
    for draft in plan.drafts:
        if draft.kind == "trace" and draft.work_id is not None:
            work = works.load(tx, draft.workspace_id, draft.channel, draft.work_id)
            return work if work is not None and work.target == context.us else None
    return None
