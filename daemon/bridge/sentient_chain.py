"""The daemon's part of a sentient chain: its log entries in `ext`, the links between its works, the memory agent."""

from typing import Any, Final, NamedTuple

import msgspec

from aghbus.daemon.config.bridge_settings import SentientSettings
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.formats import common
from aghbus.protocol.formats.attachments import size_of
from aghbus.protocol.formats.derived_ids import envelope_id, legal_id, thread_id, work_id
from aghbus.protocol.formats.model import BridgeContext, SubmitPlan
from aghbus.protocol.formats.sentient.bodies import report_body
from aghbus.protocol.formats.sentient.log import SentientLogEntry, entries_in, memory_say, with_log
from aghbus.protocol.formats.sentient.message import SentientMessage
from aghbus.protocol.formats.sentient.native import CHAIN, SentientIds
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables.bridge import follow_ups
from aghbus.store.tables.bridge import messages as bridge
from aghbus.store.tables.works import lifecycle

NAME: Final = "sentient"
CLOSED_BY: Final = f"{NAME}.closed_by"
"""In `ext` of a trace that forwards the terminal state of the next work: the id of the envelope that ended it; an array when
several branches were joined."""

BRANCH: Final = f"{NAME}.branch"
"""In `ext` of the opening of a work that is one of several branches: true."""

FINAL: Final = f"{NAME}.final"
"""In `ext` of a trace that ends a branch whose agent named the Final Output agent: true."""

FORWARDED: Final = f"{NAME}.forwarded"
"""In `ext` of a trace that forwards progress or a question of the next work: the id of its envelope."""

LAST_MESSAGE: Final = f"{NAME}.last"
"""In `ext` of a trace that forwards an end, and of the call of the memory agent: the chain's last message in full."""

_LAST_BYTES: Final = 524_288  # half an envelope, so that text and entries always fit too
_LOOKED_AT: Final = 50  # newest envelopes of a work that are searched for the chain's entries


class ChainMessage(NamedTuple):
    """A message's drafts with the chain's log entries, the assigned work that it reports on, the works that it opens, and what
    the branches of a chain that our agent began have in common."""

    drafts: tuple[Draft, ...]
    assigned: WorkView | None
    opened: tuple[tuple[str, str, str], ...]
    chain: str

    def link(self, tx: Transaction) -> None:
        """Link the assigned work to the works opened for the next agent: it ends when they do."""
        for key in self.opened:
            following = lifecycle.load(tx, *key)
            if following is not None:
                follow_ups.add(tx, self.assigned, following, self.chain)


def of(
    tx: Transaction,
    context: BridgeContext,
    plan: SubmitPlan,
    *,
    self_id: str,
    settings: SentientSettings,
    branch: bool,
) -> ChainMessage:
    """The chain data of a submitted message, before anything is sent. `branch`: it was submitted together with others."""
    record: Any = plan.record or {}
    assigned = _assigned(tx, context, plan)
    entries = entries_so_far(tx, assigned) if assigned is not None else ()
    if record:
        entries = (*entries, SentientLogEntry(record["day"], record["entry"]))
    chain = ids_of(plan.message)
    planned = plan.drafts
    if assigned is not None and is_branch(tx, assigned):
        planned = _for_final_agent(plan, settings.final_agent)
    drafts = [_with_chain(draft, chain, entries, branch=branch) for draft in planned]
    opened = tuple(
        (draft.workspace_id, draft.channel, draft.work_id)
        for draft in drafts
        if draft.kind == "say" and draft.work_id is not None and (assigned is None or draft.work_id != assigned.work_id)
    )
    if record and record["ends_chain"] and drafts and begins(tx, assigned):
        notification = memory_draft(
            context, self_id, settings.memory_agent, chain, plan.message, entries, drafts[-1].id
        )
        drafts += [notification] if notification is not None else []
    return ChainMessage(tuple(drafts), assigned, opened, key_of(chain))


def key_of(chain: SentientIds) -> str:
    """What the links of a chain that our agent began have in common."""
    return f"{chain.session_id} {chain.request_id}"


def begins(tx: Transaction, assigned: WorkView | None) -> bool:
    """Whether the chain began here: no agent of the chain opened the assigned work. Then our daemon handles its end."""
    if assigned is None:
        return True
    return CHAIN not in _opening_ext(tx, assigned)


def is_branch(tx: Transaction, assigned: WorkView) -> bool:
    """Whether an assigned work is one of several branches that were submitted together."""
    return _opening_ext(tx, assigned).get(BRANCH) is True


def _opening_ext(tx: Transaction, work: WorkView) -> dict[str, Any]:
    opening = bridge.envelope_by_id(tx, work.workspace_id, work.opening_id, work.initiator)
    return {} if opening is None else extensions(opening.raw)


def _for_final_agent(plan: SubmitPlan, final_agent: str | None) -> tuple[Draft, ...]:
    """The drafts of a message on a branch: for the Final Output agent it ends the branch, because that is called with all."""
    if len(plan.drafts) != 2 or final_agent is None or plan.drafts[1].to != final_agent:
        return plan.drafts
    traced, said = plan.drafts
    body = report_body(msgspec.convert(plan.message, SentientMessage))
    return (msgspec.structs.replace(traced, body=body, ext={**(said.ext or {}), FINAL: True}),)


def _with_chain(draft: Draft, chain: SentientIds, entries: tuple[SentientLogEntry, ...], *, branch: bool) -> Draft:
    """The draft that carries the message with the entries so far and the ids of its chain."""
    if f"{NAME}.message" not in (draft.ext or {}):
        return draft
    ext = {**(draft.ext or {}), CHAIN: msgspec.structs.asdict(chain)}
    if branch and draft.kind == "say" and draft.work_id is not None:
        ext[BRANCH] = True
    return with_log(msgspec.structs.replace(draft, ext=ext), entries)


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
    ext = {CHAIN: msgspec.structs.asdict(chain), **last_message(message)}
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


def last_message(message: Any) -> dict[str, Any]:
    """The last message of a chain as a member of `ext`; none when it is not known or too large."""
    return {} if message is None or size_of(message) > _LAST_BYTES else {LAST_MESSAGE: message}


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
    opening = bridge.envelope_by_id(tx, work.workspace_id, work.opening_id, work.initiator)
    return () if opening is None else entries_in(extensions(opening.raw))


def extensions(raw: bytes) -> dict[str, Any]:
    """`ext` of a stored envelope."""
    ext = decode_json(raw).get("ext")
    return ext if isinstance(ext, dict) else {}


def _assigned(tx: Transaction, context: BridgeContext, plan: SubmitPlan) -> WorkView | None:
    """The assigned work that the message reports on: that of its trace."""
    for draft in plan.drafts:
        if draft.kind == "trace" and draft.work_id is not None:
            work = lifecycle.load(tx, draft.workspace_id, draft.channel, draft.work_id)
            return work if work is not None and work.target == context.us else None
    return None
