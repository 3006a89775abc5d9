"""Works that our agent opens for a capability: choosing a peer, and handing the work over to the next (docs/hand-over.md)."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec

from aghbus.daemon.nats.link import Link
from aghbus.daemon.send.drafts import check_size
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.lanes import Lanes
from aghbus.daemon.state.presence import PresenceTable
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.agh.delivery.order import AFTER
from aghbus.protocol.agh.handover import (
    ACCEPT_KEY,
    Candidate,
    Handover,
    Tried,
    least_busy_first,
    next_candidates,
)
from aghbus.protocol.agh.identifiers import direct_id
from aghbus.protocol.agh.lifecycle import CONTINUES, WorkView
from aghbus.protocol.agh.send import Draft, apply_own, build
from aghbus.protocol.api.works import WorkOpenRequest
from aghbus.protocol.base.errors import InvalidRequest, NotFound, Refused
from aghbus.store.apply_effects import Application, load_own
from aghbus.store.audit import events as audit
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import deadlines
from aghbus.store.tables.outbox import Outgoing, following
from aghbus.store.tables.works import handovers

_NOT_COPIED = (AFTER, CONTINUES, ACCEPT_KEY)


class Next(NamedTuple):
    """The opening at the next peer."""

    peer: str
    draft: Draft
    handover: Handover
    limit: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Handovers:
    """Chooses the peers of works that are opened for a capability.

    `restored_ms`: when the store was restored from a backup, 0 if it was not. Works of before may have been handed over after
    that backup, and are not handed over again.
    """

    context: DaemonContext
    presence: PresenceTable
    lanes: Lanes
    link: Link
    restored_ms: int = 0

    def candidates(self, tx: Transaction, channel: str, capability: str) -> list[Candidate]:
        """The present peers that announce a capability, the one that should get a work first."""
        identity = self.context.identity
        now_ms = self.context.clock.millis()
        found = self.presence.candidates(identity.workspace, channel, capability, now_ms)
        found = [one for one in found if one.peer_id not in identity]
        ours = handovers.open_at(tx, [one.peer_id for one in found]) if len(found) > 1 else {}
        return least_busy_first(one._replace(ours=ours.get(one.peer_id, 0)) for one in found)

    def addressed(self, tx: Transaction, ask: WorkOpenRequest) -> tuple[WorkOpenRequest, Handover]:
        """The request for the peer that gets the work, and what is kept with it. Raises NotFound when no peer is present."""
        assert ask.to_capability is not None
        configured = self.context.settings.current.work.accept_within
        handover = Handover(
            capability=ask.to_capability,
            accept_within=configured or None if ask.accept_within is None else ask.accept_within,
            progress_within=ask.progress_within,
            hedge=ask.hedge,
        )
        channel = ask.channel or self.context.identity.channels[0][1]
        found = self.candidates(tx, channel, ask.to_capability)
        if not found:
            hint = f"`aghctl wait --capability {ask.to_capability}` waits for one; `aghctl peers` lists who is there"
            raise NotFound(f"no present peer announces the capability {ask.to_capability}", hint=hint)
        limit, told = self._limits(handover, len(found) - 1)
        return self.asked(ask, found[0].peer_id, limit, told), handover

    def _limits(self, handover: Handover, others: int) -> tuple[float | None, float | None]:
        """Seconds in which a peer has to accept, and those that its opening says: then one of `others` gets the work."""
        limit = handover.limit(others)
        if limit is None or not others:
            return limit, None
        return limit, min(limit, self._progress_within(handover) or limit)

    def _progress_within(self, handover: Handover) -> float | None:
        configured = self.context.settings.current.work.progress_within
        return (configured if handover.progress_within is None else handover.progress_within) or None

    def asked(
        self, ask: WorkOpenRequest, peer: str, limit: float | None = None, told: float | None = None
    ) -> WorkOpenRequest:
        """The request for `peer`, which has `limit` seconds to accept (None: without limit). If it is `told` how many, it rejects
        the work itself then, or when it stops: another peer is left."""
        return msgspec.structs.replace(
            ask,
            to=peer,
            intent=ask.to_capability if ask.intent in (None, "request") else ask.intent,
            accept_within=limit or 0.0,
            ext={**(ask.ext or {}), ACCEPT_KEY: told} if told else ask.ext,
        )

    def next(self, tx: Transaction, work: WorkView, why: str, *, refused: bool) -> Next | None:
        """How a work of ours that this peer does not do goes on; None when it cannot, or stays where it is. `refused`: the peer is
        not asked again. Raises InvalidRequest when it may be with another peer already, or its opening cannot be sent."""
        before = handovers.of(tx, work)
        raw = None if before is None else handovers.opening(tx, work)
        if before is None or raw is None:
            return None
        if self._is_of_backup(tx, work):
            raise InvalidRequest("the store was restored from a backup, after which another peer may have got it")
        tried = (*before.tried, Tried(work.work_id, work.target, why, refused))
        handover = msgspec.structs.replace(before, tried=tried)
        found = [one.peer_id for one in next_candidates(self.candidates(tx, work.channel, before.capability), handover)]
        once = work.target not in {one.peer for one in before.tried}
        if not found and work.is_terminal and once and not (refused or before.last or before.accept_within):
            found = [work.target]  # it did not accept in time, and may be back later
        if not found or (found[0] == work.target and not work.is_terminal):
            return None
        peer = found[0]
        handover = msgspec.structs.replace(handover, last=peer in {one.peer for one in tried})
        limit, told = self._limits(handover, len(found) - 1)
        return Next(peer, self._draft(tx, decode_json(raw), work, peer, told), handover, limit)

    def _draft(self, tx: Transaction, opening: dict[str, Any], work: WorkView, peer: str, told: float | None) -> Draft:
        """The opening of `work` for another peer, which says the limit `told`. Raises InvalidRequest when its life is over, or it
        is too large."""
        clock, identity = self.context.clock, self.context.identity
        now = clock.seconds()
        ext = {key: value for key, value in (opening.get("ext") or {}).items() if key not in _NOT_COPIED}
        container = work.container
        if work.surface == "direct":
            container = direct_id(work.workspace_id, work.channel, identity.self_id, peer)
        draft = Draft(
            id=clock.mint(),
            workspace_id=work.workspace_id,
            channel=work.channel,
            kind=opening["kind"],
            sender=identity.self_id,
            to=peer,
            ts=now,
            expires_at=opening.get("expires_at"),
            surface=work.surface,
            container=container,
            work_id=clock.mint("work_"),
            trace_id=opening.get("trace_id"),
            causation_id=work.opening_id,
            body=opening["body"],
            ext={**ext, ACCEPT_KEY: told} if told else ext,
        )
        draft = following(tx, draft)
        check_size(build(draft, now, identity.signer), self.link.max_payload)
        return draft

    def open(self, tx: Transaction, work: WorkView, then: Next) -> list[Outgoing]:
        """Open the work at the next peer; it has ended at this one. The outbox rows."""
        context = self.context
        now_ms = context.clock.millis()
        envelope = build(then.draft, now_ms // 1000, context.identity.signer)
        try:
            effects = apply_own(envelope, *load_own(tx, envelope), work.reactions)
        except Refused:
            return []
        applied = Application(tx, envelope.sender, now_ms).send(envelope, effects)
        opened = applied.after
        assert opened is not None
        self.lanes.address(tx, envelope, now_ms)
        progress = self._progress_within(then.handover)
        deadlines.begin(tx, opened, _millis(then.limit), _millis(progress), now_ms)
        handovers.put(tx, opened, then.handover)
        handovers.link(tx, work, opened.work_id)
        audit.note_policy(tx, now_ms, "work_handed_over", then.handover.tried[-1].why, envelope=envelope)
        tx.after_commit(partial(context.counters.add, "works.handed_over"))
        return list(applied.outgoing)

    def may_wait(self, tx: Transaction, work: WorkView) -> bool:
        """Whether a work for a capability may wait without limit for its peer: the caller gave none."""
        kept = handovers.of(tx, work)
        return kept is not None and not kept.accept_within and not self._is_of_backup(tx, work)

    def _is_of_backup(self, tx: Transaction, work: WorkView) -> bool:
        return handovers.opened_ms(tx, work) <= self.restored_ms

    def gone(self, tx: Transaction) -> list[tuple[WorkView, str]]:
        """The works of ours whose peer is gone, with the reason, that go on: those that it may not have, and with `hedge` all.

        No message moves an accepted work: only the expired presence of its peer does.
        """
        found: list[tuple[WorkView, str]] = []
        now_ms, second = self.context.clock.millis(), self.context.clock.monotonic()
        for work in handovers.in_progress(tx):
            peer = work.workspace_id, work.channel, work.target
            silent = self.presence.is_silent(*peer, now_ms, second)
            if not (silent or self.presence.has_left(*peer)) or (kept := handovers.of(tx, work)) is None:
                continue
            unaccepted = work.state == "submitted" and not handovers.is_delivered(tx, work)
            if unaccepted or (kept.hedge and silent):
                found.append((work, f"{work.target} is gone"))
        return found


def _millis(seconds: float | None) -> int | None:
    return None if not seconds else int(1000 * seconds)
