"""Peers with Sentient agents on a bus in memory: what each sent and received, its works, and a memory that answers from it."""

import copy
import json
from typing import Any, Final, Literal

import msgspec

from aghbus.protocol.adapters.model import (
    AgentMap,
    BridgeContext,
    BridgedEnvelope,
    BridgedMessage,
    Delivered,
    Direction,
    Finding,
    SubmitPlan,
)
from aghbus.protocol.adapters.sentient.adapter import Sentient, SentientOptions
from aghbus.protocol.adapters.timestamps import read_timestamp
from aghbus.protocol.effects import Advance, Open
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.lifecycle import WorkView, after, opened_by, step
from aghbus.protocol.send import apply_own, build
from tests.support.seed_examples import examples

OBJECTIVES, GOALS, OUT_OF_SCOPE = (example.value for example in examples("sentient"))
WORKSPACE: Final = "ws_alpha"
CHANNEL: Final = "builders"
NAMES: Final = {"objective_agent": "obj", "goal_agent": "goal", "planning_agent": "plan"}
Message = dict[str, Any]


def at(message: Message) -> int:
    """The Unix second in which a message says it was made."""
    stamp = read_timestamp(message["timestamp"]["executed_at"])
    assert stamp is not None
    assert stamp.seconds is not None
    return stamp.seconds


NOW: Final = at(OBJECTIVES) + 2


def changed(message: Message, changes: dict[str, Any]) -> Message:
    """A copy with members set by `/`-separated path; `...` removes one."""
    made = copy.deepcopy(message)
    for path, value in changes.items():
        *outer, last = path.split("/")
        inner: Any = made
        for key in outer:
            inner = inner[int(key) if isinstance(inner, list) else key]
        if value is ...:
            del inner[last]
        else:
            inner[int(last) if isinstance(inner, list) else last] = value
    return made


def rules(findings: tuple[Finding, ...], severity: str | None = None) -> list[tuple[str, str]]:
    """Path and rule of each finding, in order."""
    return [(one.path, one.rule) for one in findings if severity in (None, one.severity)]


class Peer:
    """One daemon as far as the adapter sees it. It is the `Memory` of its own agent."""

    whole = True

    def __init__(self, name: str, user: str | None = None, names: dict[str, str] = NAMES) -> None:
        self.name = name
        self.adapter = Sentient(SentientOptions(user=user))
        self.agents = AgentMap(names=names)
        self.known: list[tuple[str, str, BridgedMessage]] = []
        self.works: dict[str, WorkView] = {}
        self.own: dict[str, Envelope] = {}
        self.delivered: list[Delivered] = []

    def context(self, now: int = NOW, work_id: str | None = None) -> BridgeContext:
        return BridgeContext(
            us=self.name, workspace_id=WORKSPACE, channel=CHANNEL, now=now, agents=self.agents, work_id=work_id
        )

    def plan(self, message: Any, now: int = NOW, work_id: str | None = None) -> SubmitPlan:
        text = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.adapter.submit(text, self.context(now, work_id), self)

    def commit(self, plan: SubmitPlan, now: int = NOW) -> list[Envelope]:
        """Build and send a plan's drafts through the protocol's own door."""
        assert not plan.refused, plan.findings
        if plan.repeats:
            return []
        envelopes = [build(draft, now) for draft in plan.drafts]
        for envelope in envelopes:
            for effect in apply_own(envelope, self.works.get(envelope.work_id or ""), None):
                if isinstance(effect, Open):
                    self.works[effect.work.work_id] = effect.work
                elif isinstance(effect, Advance):
                    self.works[effect.after.work_id] = effect.after
            self.own[envelope.id] = envelope
            if "sentient.message" in envelope.extensions() and plan.foreign_id is not None:
                self.keep(plan.foreign_id, plan.scope, plan.message, "out", envelope)
        return envelopes

    def receive(self, envelope: Envelope) -> Delivered:
        verdict = None
        if envelope.work_id is not None:
            work = self.works.get(envelope.work_id)
            verdict = step(work, envelope)
            assert verdict.outcome in ("opened", "advanced", "unchanged"), verdict
            self.works[envelope.work_id] = opened_by(envelope) if work is None else after(work, envelope, verdict)
        arrival = BridgedEnvelope(
            envelope=envelope,
            work=self.works.get(envelope.work_id or ""),
            outcome=verdict.outcome if verdict else None,
        )
        delivered = self.adapter.deliver(arrival, self.context(), self)
        if delivered.foreign_id is not None and envelope.kind in self.adapter.delivered_kinds:
            self.keep(delivered.foreign_id, delivered.scope, delivered.message, "in", envelope)
            self.delivered.append(delivered)
        return delivered

    def keep(self, foreign_id: str, scope: str, message: Any, direction: Direction, envelope: Envelope) -> None:
        known = BridgedMessage(
            message=message, direction=direction, envelope_id=envelope.id, sender=envelope.sender, at=envelope.ts
        )
        self.known.append((foreign_id, scope, msgspec.structs.replace(known, work=self._stub(envelope))))

    def _stub(self, envelope: Envelope) -> WorkView | None:
        return self.works.get(envelope.work_id or "")

    def _fresh(self, known: BridgedMessage) -> BridgedMessage:
        work = self.works[known.work.work_id] if known.work is not None else None
        return msgspec.structs.replace(known, work=work)

    def find(self, foreign_id: str, scope: str = "", direction: Direction | None = None) -> BridgedMessage | None:
        for key, session, known in reversed(self.known):
            if key == foreign_id and scope in ("", session) and direction in (None, known.direction):
                return self._fresh(known)
        return None

    def arrived(self, foreign_id: str) -> list[BridgedMessage]:
        found = [known for key, _, known in reversed(self.known) if key == foreign_id and known.direction == "in"]
        return [self._fresh(known) for known in found]

    def last(self, scope: str) -> BridgedMessage | None:
        return next((self._fresh(known) for _, session, known in reversed(self.known) if session == scope), None)

    def work(self, work_id: str) -> WorkView | None:
        return self.works.get(work_id)

    def assigned_works(self) -> tuple[WorkView, ...]:
        return tuple(work for work in self.works.values() if work.target == self.name and not work.is_terminal)

    def was_delivered(self, work: WorkView) -> bool:
        return True

    def received_works(self) -> bool:
        return True

    def opening(self, work: WorkView) -> BridgedMessage | None:
        return next((self._fresh(known) for _, _, known in self.known if known.envelope_id == work.opening_id), None)

    def answered(self, work: WorkView) -> str:
        return work.opening_id

    def sent(self, envelope_id: str) -> WorkView | Literal[True] | None:
        envelope = self.own.get(envelope_id)
        return None if envelope is None else self.works.get(envelope.work_id or "") or True


class Bus:
    """Carries envelopes between peers by their receiver."""

    def __init__(self, *peers: Peer) -> None:
        self.peers = {peer.name: peer for peer in peers}

    def submit(self, name: str, message: Any, work_id: str | None = None) -> SubmitPlan:
        peer = self.peers[name]
        plan = peer.plan(message, work_id=work_id)
        for envelope in peer.commit(plan):
            assert envelope.to is not None
            self.peers[envelope.to].receive(envelope)
        return plan

    def request(self, draft: Any) -> Envelope:
        """A native envelope of a peer, delivered."""
        envelope = build(draft, NOW)
        sender = self.peers[envelope.sender]
        for effect in apply_own(envelope, sender.works.get(envelope.work_id or ""), None):
            if isinstance(effect, Open):
                sender.works[effect.work.work_id] = effect.work
        self.peers[envelope.to or ""].receive(envelope)
        return envelope
