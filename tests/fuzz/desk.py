"""One side of a bus in memory for the adapters' target: its works, and a memory of messages (`adapters.model.Memory`)."""

from typing import Any, Final, Literal

import msgspec

from aghbus.protocol.adapters.model import (
    Adapter,
    AgentMap,
    BridgeContext,
    BridgedEnvelope,
    BridgedMessage,
    Delivered,
    Direction,
    SubmitPlan,
)
from aghbus.protocol.effects import Advance, Open
from aghbus.protocol.envelope import OPENING_KINDS, Envelope, parse
from aghbus.protocol.lifecycle import WorkView, after, opened_by, step
from aghbus.protocol.send import Draft, apply_own, build
from tests.fuzz.oracles import NOW

WORKSPACE: Final = "ws_alpha"
CHANNEL: Final = "builders"


class Desk:
    """The peer `us`, which talks to `other`; every agent's name that is no peer id stands for one of the two."""

    def __init__(self, adapter: Adapter, us: str, other: str) -> None:
        self.us = us
        self.adapter = adapter
        self.works: dict[str, WorkView] = {}
        self._agents = AgentMap(own=us, other=other)
        self._target = other
        self._crossed: list[tuple[str | None, str, BridgedMessage, str | None]] = []
        self._sent: dict[str, str | None] = {}
        self._said: dict[str, str] = {}

    # model.Memory

    @property
    def whole(self) -> bool:
        """Earlier messages may be missing: what cannot be found is not judged."""
        return False

    def find(self, foreign_id: str, scope: str = "", direction: Direction | None = None) -> BridgedMessage | None:
        """The latest message of this id."""
        for found, where, known, work_id in reversed(self._crossed):
            if found == foreign_id and scope in ("", where) and direction in (None, known.direction):
                return msgspec.structs.replace(known, work=self.works.get(work_id or ""))
        return None

    def arrived(self, foreign_id: str) -> list[BridgedMessage]:
        """The latest message of this id that arrived, whoever sent it."""
        found = self.find(foreign_id, direction="in")
        return [] if found is None else [found]

    def last(self, scope: str) -> BridgedMessage | None:
        """The latest message of a scope."""
        return next((known for _, where, known, _ in reversed(self._crossed) if where == scope), None)

    def work(self, work_id: str) -> WorkView | None:
        """Our copy of a work."""
        return self.works.get(work_id)

    def assigned_works(self) -> tuple[WorkView, ...]:
        """Open works of ours."""
        return tuple(work for work in self.works.values() if work.target == self.us and not work.is_terminal)

    def was_delivered(self, work: WorkView) -> bool:
        """Every work of ours was."""
        return True

    def received_works(self) -> bool:
        """It was handed them all."""
        return True

    def opening(self, work: WorkView) -> BridgedMessage | None:
        """The message that opened a work."""
        return next((known for _, _, known, _ in self._crossed if known.envelope_id == work.opening_id), None)

    def answered(self, work: WorkView) -> str:
        """The envelope that our next message on a work answers."""
        return self._said.get(work.work_id, work.opening_id)

    def sent(self, envelope_id: str) -> WorkView | Literal[True] | None:
        """The work of an envelope that we sent before."""
        if envelope_id not in self._sent:
            return None
        return self.works.get(self._sent[envelope_id] or "") or True

    # the bus

    def context(self) -> BridgeContext:
        """Here and now."""
        return BridgeContext(
            us=self.us,
            workspace_id=WORKSPACE,
            channel=CHANNEL,
            now=NOW,
            agents=self._agents,
            target=self._target,
        )

    def send(self, draft: Draft) -> Envelope:
        """An envelope of ours, as anybody's sending: built, and applied to our own copy of the work."""
        envelope = build(draft, NOW)
        for effect in apply_own(envelope, self.works.get(envelope.work_id or ""), None):
            if isinstance(effect, Open):
                self.works[effect.work.work_id] = effect.work
            elif isinstance(effect, Advance):
                self.works[effect.after.work_id] = effect.after
        self._sent[envelope.id] = envelope.work_id
        return envelope

    def remember(self, plan: SubmitPlan, envelope: Envelope) -> None:
        """A message of ours crossed."""
        self._keep(plan.foreign_id, plan.scope, plan.message, "out", envelope)

    def receive(self, envelope: Envelope, carried: Any = None) -> Delivered:
        """What our agent gets for an envelope, read from its bytes."""
        envelope = parse(envelope.raw, NOW)
        outcome = self._apply(envelope)
        work = self.works.get(envelope.work_id or "")
        arrival = BridgedEnvelope(envelope=envelope, work=work, outcome=outcome, carried=carried)
        delivered = self.adapter.deliver(arrival, self.context(), self)
        if delivered.message is not None:
            self._keep(delivered.foreign_id, delivered.scope, delivered.message, "in", envelope)
        return delivered

    def _apply(self, envelope: Envelope) -> str | None:
        if envelope.work_id is None:
            return None
        work = self.works.get(envelope.work_id)
        verdict = step(work, envelope)
        if verdict.outcome == "opened":
            self.works[envelope.work_id] = opened_by(envelope)
        elif work is not None and verdict.outcome in ("advanced", "unchanged"):
            self.works[envelope.work_id] = after(work, envelope, verdict)
        if envelope.kind in OPENING_KINDS:
            self._said[envelope.work_id] = envelope.id
        return verdict.outcome

    def _keep(self, foreign_id: str | None, scope: str, message: Any, direction: Direction, envelope: Envelope) -> None:
        known = BridgedMessage(
            message=message, direction=direction, envelope_id=envelope.id, sender=envelope.sender, at=NOW
        )
        self._crossed.append((foreign_id, scope, known, envelope.work_id))
