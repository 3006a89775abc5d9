"""Two peers that speak AgentOS over envelopes in memory: what one hands over is built, parsed and stepped as on the bus."""

import json
from typing import Any, Final, Literal

import msgspec

from aghbus.protocol.adapters.agentos.adapter import AgentOs, AgentOsOptions
from aghbus.protocol.adapters.model import (
    AgentMap,
    BridgeContext,
    BridgedEnvelope,
    BridgedMessage,
    Delivered,
    Direction,
    SubmitPlan,
)
from aghbus.protocol.effects import Advance, Open
from aghbus.protocol.envelope import Envelope, parse
from aghbus.protocol.lifecycle import WorkView, after, opened_by, step
from aghbus.protocol.send import Draft, apply_own, build
from tests.support.seed_examples import examples

NOW: Final = 1_769_000_000
WORKSPACE: Final = "ws_alpha"
CHANNEL: Final = "builders"
ASKER: Final = "one-brain.ob-001"
ANALYST: Final = "macro-analyst.ma-001"

QUERY, RESPONSE, ERROR, GAP = (example.value for example in examples("agentos"))


def varied(message: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A deep copy with members replaced; `...` removes one, `sender` stands for `from`."""
    made: dict[str, Any] = json.loads(json.dumps(message))
    if "sender" in changes:
        changes["from"] = changes.pop("sender")
    made.update(changes)
    return {key: value for key, value in made.items() if value is not ...}


def agent(peer: str) -> dict[str, str]:
    """The AgentIdentifier that is this dotted peer id."""
    name, _, instance = peer.partition(".")
    return {"agentId": name, "instanceId": instance}


class Desk:
    """One peer: its adapter, its memory of messages (model.Memory) and its copy of the works."""

    def __init__(
        self, us: str, *, names: dict[str, str] | None = None, whole: bool = True, options: AgentOsOptions | None = None
    ) -> None:
        self.us = us
        self.agents = AgentMap(names=names or {})
        self.adapter = AgentOs(options)
        self.works: dict[str, WorkView] = {}
        self._whole = whole
        self._crossed: list[tuple[str | None, BridgedMessage, str | None]] = []
        self._sent: dict[str, str | None] = {}
        self._said: dict[str, str] = {}

    # model.Memory

    @property
    def whole(self) -> bool:
        return self._whole

    def find(self, foreign_id: str, scope: str = "", direction: Direction | None = None) -> BridgedMessage | None:
        for identifier, known, work_id in reversed(self._crossed):
            if identifier == foreign_id and direction in (None, known.direction):
                return msgspec.structs.replace(known, work=self.works.get(work_id or ""))
        return None

    def arrived(self, foreign_id: str) -> list[BridgedMessage]:
        found = self.find(foreign_id, direction="in")
        return [] if found is None else [found]

    def last(self, scope: str) -> BridgedMessage | None:
        return self._crossed[-1][1] if self._crossed else None

    def work(self, work_id: str) -> WorkView | None:
        return self.works.get(work_id)

    def assigned_works(self) -> tuple[WorkView, ...]:
        return tuple(work for work in self.works.values() if work.target == self.us and not work.is_terminal)

    def was_delivered(self, work: WorkView) -> bool:
        return True

    def received_works(self) -> bool:
        return True

    def opening(self, work: WorkView) -> BridgedMessage | None:
        return next((known for _, known, _ in self._crossed if known.envelope_id == work.opening_id), None)

    def answered(self, work: WorkView) -> str:
        return self._said.get(work.work_id, work.opening_id)

    def sent(self, envelope_id: str) -> WorkView | Literal[True] | None:
        if envelope_id not in self._sent:
            return None
        return self.works.get(self._sent[envelope_id] or "") or True

    # the bus

    def context(self, now: int = NOW, work_id: str | None = None) -> BridgeContext:
        return BridgeContext(
            us=self.us, workspace_id=WORKSPACE, channel=CHANNEL, now=now, agents=self.agents, work_id=work_id
        )

    def plan(self, message: Any, now: int = NOW, work_id: str | None = None) -> SubmitPlan:
        """What the adapter makes of a message; nothing is sent."""
        text = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.adapter.submit(text, self.context(now, work_id), self)

    def send(self, message: Any, now: int = NOW, work_id: str | None = None) -> Envelope:
        """The one envelope of a message that is not refused, applied to our own copy of the work."""
        plan = self.plan(message, now, work_id)
        assert not plan.refused, plan.findings
        assert not plan.repeats
        (draft,) = plan.drafts
        envelope = self.say(draft, now)
        self._remember(plan.foreign_id, plan.message, "out", envelope, now)
        return envelope

    def say(self, draft: Draft, now: int = NOW) -> Envelope:
        """Send an envelope of ours, whoever made it."""
        envelope = build(draft, now)
        for effect in apply_own(envelope, self.works.get(envelope.work_id or ""), None):
            if isinstance(effect, Open):
                self.works[effect.work.work_id] = effect.work
            elif isinstance(effect, Advance):
                self.works[effect.after.work_id] = effect.after
        self._sent[envelope.id] = envelope.work_id
        return envelope

    def receive(self, envelope: Envelope, now: int = NOW) -> Delivered:
        """What our agent gets for an envelope that arrives, parsed from its bytes."""
        envelope = parse(envelope.raw, now)
        outcome = None
        if envelope.work_id is not None:
            work = self.works.get(envelope.work_id)
            verdict = step(work, envelope)
            outcome = verdict.outcome
            if outcome == "opened":
                self.works[envelope.work_id] = opened_by(envelope)
            elif work is not None and outcome in ("advanced", "unchanged"):
                self.works[envelope.work_id] = after(work, envelope, verdict)
            if envelope.kind in ("say", "capability"):
                self._said[envelope.work_id] = envelope.id
        arrival = BridgedEnvelope(envelope=envelope, work=self.works.get(envelope.work_id or ""), outcome=outcome)
        delivered = self.adapter.deliver(arrival, self.context(now), self)
        if delivered.message is not None:
            self._remember(delivered.foreign_id, delivered.message, "in", envelope, now)
        return delivered

    def _remember(
        self, foreign_id: str | None, message: Any, direction: Direction, envelope: Envelope, now: int
    ) -> None:
        known = BridgedMessage(
            message=message, direction=direction, envelope_id=envelope.id, sender=envelope.sender, at=now
        )
        self._crossed.append((foreign_id, known, envelope.work_id))


def pair(**options: Any) -> tuple[Desk, Desk]:
    """The asker and the analyst of the schema's examples."""
    made = AgentOsOptions(**options)
    return Desk(ASKER, options=made), Desk(ANALYST, options=made)


def rules(findings: tuple[Any, ...]) -> list[tuple[str, str, str]]:
    """Findings as `(path, rule, severity)`."""
    return [(finding.path, finding.rule, finding.severity) for finding in findings]


def told(delivered: Delivered) -> dict[str, Any]:
    """The message that was handed out."""
    assert isinstance(delivered.message, dict)
    return delivered.message


def native(sender: str, to: str | None, kind: str, body: dict[str, Any], **more: Any) -> Draft:
    """An envelope without a message of any format."""
    fields: dict[str, Any] = {
        "id": f"msg_{kind}_1",
        "workspace_id": WORKSPACE,
        "channel": CHANNEL,
        "kind": kind,
        "sender": sender,
        "to": to,
        "ts": NOW,
        "surface": "thread",
        "container": "thread_release_check",
        "expires_at": NOW + 600,
        "body": body,
    }
    return Draft(**(fields | more))
