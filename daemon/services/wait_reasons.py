"""Why works do not move: what the store, presence and the link know of one, put before the rules (docs/why.md). Reading only."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.nats.link import Link
from aghbus.daemon.receive.held_back import HeldBack
from aghbus.daemon.send.unresponsive_peers import UnresponsivePeers
from aghbus.daemon.state.lanes import Lanes
from aghbus.daemon.state.presence import PresenceTable
from aghbus.protocol.agh.identifiers import subject_for
from aghbus.protocol.agh.lifecycle import OPEN_STATES
from aghbus.protocol.agh.trust.trust import Trust
from aghbus.protocol.api.wait_reason import Facts, OwnMessage, StoredFacts, wait_reason
from aghbus.protocol.api.works import WaitReason, Work
from aghbus.protocol.base.spelling import near_peers
from aghbus.store.engine.database import Store
from aghbus.store.tables import wait_facts

_COMPARED: Final = (
    300  # peers, the latest seen, whose names are compared with an unknown one: anybody may greet under thousands
)
_LONGEST: Final = 64  # characters of such a name: comparing takes time with its square


@dataclass(frozen=True, slots=True, eq=False)
class WaitReasons:
    """Why the works of one daemon do not move."""

    store: Store
    presence: PresenceTable
    lanes: Lanes
    link: Link
    clock: Clock
    held_back: HeldBack
    unresponsive: UnresponsivePeers
    waiting_for: Callable[[], str | None]  # why queued messages are not published now

    async def of(self, work: Work) -> WaitReason | None:
        """Why `work` does not move; None when it has ended."""
        if work.state not in OPEN_STATES:
            return None
        stored = await wait_facts.read(self.store.reader, work)
        if stored is not None and _waits_for_answer(stored) and await self.store.commit_deferred():
            stored = await wait_facts.read(self.store.reader, work)
        return None if stored is None else wait_reason(self._facts(work, stored))

    def _facts(self, work: Work, stored: StoredFacts) -> Facts:
        peer = work.target if work.role == "initiator" else work.initiator
        now_ms, seen = self.clock.millis(), self.presence.seen(work.workspace_id, work.channel, peer)
        return Facts(
            now_ms=now_ms,
            work=work,
            stored=stored,
            seen_ms=None if seen is None else seen.last_seen_ms,
            present=seen is not None and self.presence.of(seen, now_ms) == "active",
            near=() if seen is not None else self._near(work, peer),
            link_down=self._link_down(),
            queue=self._queue(subject_for(work.workspace_id, work.channel, peer), peer),
            held_back=self.held_back.explain_work(work.work_id, peer),
            admitted=work.role != "target" or self.lanes.of(peer, cast(Trust, work.trust)) != "other",
        )

    def _near(self, work: Work, peer: str) -> tuple[str, ...]:
        known = self.presence.latest(work.workspace_id, work.channel, _COMPARED)
        return tuple(near_peers(peer[:_LONGEST], [each for each in known if len(each) <= _LONGEST]))

    def _link_down(self) -> tuple[int, str] | None:
        link = self.link
        if link.state == "up":
            return None
        return int(1000 * link.changed_at), str(link.last_error or "")

    def _queue(self, subject: str, peer: str) -> str | None:
        if not self.store.writable:
            return "the store cannot write"
        unresponsive = self.unresponsive.subjects.get(subject)
        if unresponsive is not None and unresponsive.holds:
            return f"earlier messages to {peer} are not answered"
        return self.waiting_for()


def _waits_for_answer(stored: StoredFacts) -> bool:
    return any(isinstance(one, OwnMessage) and one.outstanding for one in (stored.opening, stored.last))
