"""One peer of the bridge in memory: an adapter, copies of its works, and the message history that the adapter asks.

The daemon does the same over its store. Envelopes pass the protocol's own validation and lifecycle on both sides.
"""

import json
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from aghbus.protocol.agh.effects import Advance, Open
from aghbus.protocol.agh.envelope import OPENING_KINDS, Envelope, parse
from aghbus.protocol.agh.lifecycle import WorkView, after, opened_by, transition
from aghbus.protocol.agh.send import Draft, apply_own, build
from aghbus.protocol.formats.model import (
    Adapter,
    AgentMap,
    BridgeContext,
    BridgedEnvelope,
    BridgeDirection,
    BridgedMessage,
    Delivered,
    SubmitPlan,
)

WORKSPACE: Final = "ws_alpha"
CHANNEL: Final = "builders"


class _Exchange(NamedTuple):
    """A message that this peer submitted or got, and its envelope. `native` messages open no work of the format."""

    envelope: Envelope
    direction: BridgeDirection
    message: Any
    foreign_id: str | None
    scope: str
    native: bool
    at: int


class BridgePeer:
    """The peer `us`. It implements `model.MessageHistory` for its own adapter.

    `whole` False: earlier messages may be missing, as offline. Works in `undelivered` count as not delivered to the agent.
    `passed_on` has the assigned work of each work that was opened for a next agent.
    """

    def __init__(
        self, us: str, adapter: Adapter, *, now: int, agents: AgentMap | None = None, target: str | None = None
    ) -> None:
        self.us = us
        self.adapter = adapter
        self.now = now
        self.agents = AgentMap() if agents is None else agents
        self.whole = True
        self.works: dict[str, WorkView] = {}
        self.undelivered: set[str] = set()
        self.passed_on: dict[str, str] = {}
        self.envelopes: list[Envelope] = []
        self.delivered: list[Delivered] = []
        self._target = target
        self._exchanges: list[_Exchange] = []

    def context(self, now: int | None = None, **fields: Any) -> BridgeContext:
        """The context of a conversion, with `fields` of BridgeContext in addition."""
        return BridgeContext(
            us=self.us,
            workspace_id=WORKSPACE,
            channel=CHANNEL,
            now=self.now if now is None else now,
            agents=self.agents,
            **({"target": self._target} | fields),
        )

    # the bus

    def plan(self, message: Any, now: int | None = None, **fields: Any) -> SubmitPlan:
        """The adapter's plan for a message (bytes are taken as they are); nothing is sent."""
        text = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.adapter.submit(text, self.context(now, **fields), self)

    def commit(self, plan: SubmitPlan, now: int | None = None) -> list[Envelope]:
        """Send the drafts of a plan that is not refused, and record its message; nothing when it repeats an earlier one."""
        assert not plan.refused, plan.findings
        if plan.repeats:
            return []
        envelopes = [self.say(draft, now) for draft in plan.drafts]
        self.record(plan, envelopes, now)
        reported = next((one.work_id for one in envelopes if one.kind == "trace"), None)
        opened = (one.work_id for one in envelopes if one.kind == "say" and one.work_id not in (None, reported))
        self.passed_on.update((following, reported) for following in opened if following and reported)
        return envelopes

    def say(self, draft: Draft, now: int | None = None) -> Envelope:
        """Send one envelope of this peer."""
        envelope = build(draft, self.now if now is None else now)
        for effect in apply_own(envelope, self.works.get(envelope.work_id or ""), None):
            if isinstance(effect, Open):
                self.works[effect.work.work_id] = effect.work
            elif isinstance(effect, Advance):
                self.works[effect.after.work_id] = effect.after
        self.envelopes.append(envelope)
        return envelope

    def record(self, plan: SubmitPlan, envelopes: list[Envelope], now: int | None = None) -> None:
        """Record a submitted message with the envelope that carries it, else with the last one."""
        carrying = [one for one in envelopes if f"{self.adapter.name}.message" in one.extensions()]
        envelope = (carrying or envelopes[-1:])[0]
        at = self.now if now is None else now
        self._exchanges.append(_Exchange(envelope, "out", plan.message, plan.foreign_id, plan.scope, False, at))

    def receive(self, envelope: Envelope, now: int | None = None, *, carried: Any = None) -> Delivered:
        """Deliver an envelope, parsed from its bytes."""
        at = self.now if now is None else now
        envelope = parse(envelope.raw, at)
        outcome = self._apply(envelope)
        self.envelopes.append(envelope)
        work = self.works.get(envelope.work_id or "")
        bridged = BridgedEnvelope(envelope=envelope, work=work, outcome=outcome, carried=carried)
        made = self.adapter.deliver(bridged, self.context(now), self)
        kinds = getattr(self.adapter, "delivered_kinds", None)
        if made.message is not None and (kinds is None or envelope.kind in kinds):
            exchange = _Exchange(envelope, "in", made.message, made.foreign_id, made.scope, made.native, at)
            self._exchanges.append(exchange)
            self.delivered.append(made)
        return made

    def native(self, kind: str, body: dict[str, Any], work: WorkView | None, to: str, **more: Any) -> Draft:
        """An envelope of this peer that carries no message of the format."""
        fields: dict[str, Any] = {
            "id": f"msg_native_{len(self.envelopes)}",
            "workspace_id": WORKSPACE,
            "channel": CHANNEL,
            "kind": kind,
            "sender": self.us,
            "to": to,
            "ts": self.now,
            "surface": "thread",
            "container": work.container if work is not None else "thread_plain",
            "work_id": work.work_id if work is not None else None,
            "body": body,
        }
        return Draft(**(fields | more))

    def _apply(self, envelope: Envelope) -> str | None:
        if envelope.work_id is None:
            return None
        work = self.works.get(envelope.work_id)
        verdict = transition(work, envelope)
        if verdict.outcome == "opened":
            self.works[envelope.work_id] = opened_by(envelope)
        elif work is not None and verdict.outcome in ("advanced", "unchanged"):
            self.works[envelope.work_id] = after(work, envelope, verdict)
        return verdict.outcome

    # model.MessageHistory

    def find(self, foreign_id: str, scope: str = "", direction: BridgeDirection | None = None) -> BridgedMessage | None:
        """The latest message with this foreign id in this scope; in any scope when it is empty."""
        return next(self._found(foreign_id, scope, direction), None)

    def arrived(self, foreign_id: str) -> list[BridgedMessage]:
        """All delivered messages with this foreign id, latest first."""
        return list(self._found(foreign_id, "", "in"))

    def last(self, scope: str) -> BridgedMessage | None:
        """The latest message of a scope."""
        return next((self._bridged(one) for one in reversed(self._exchanges) if one.scope == scope), None)

    def work(self, work_id: str) -> WorkView | None:
        """The local state of a work."""
        return self.works.get(work_id)

    def assigned_works(self) -> tuple[WorkView, ...]:
        """Open works of this peer that it has not passed on."""
        ours = (work for work in self.works.values() if work.target == self.us and not work.is_terminal)
        return tuple(work for work in ours if work.work_id not in self.passed_on.values())

    def was_delivered(self, work: WorkView) -> bool:
        """Whether the opening of a work was delivered to the agent."""
        return work.work_id not in self.undelivered

    def received_works(self) -> bool:
        """Whether a work that has ended was delivered to the agent."""
        ours = (work for work in self.works.values() if work.target == self.us)
        return any(work.is_terminal and self.was_delivered(work) for work in ours)

    def opening(self, work: WorkView) -> BridgedMessage | None:
        """The message of the format that opened a work."""
        opening = (one for one in self._exchanges if one.envelope.id == work.opening_id and not one.native)
        return next(map(self._bridged, opening), None)

    def reported(self, work: WorkView) -> BridgedMessage | None:
        """The latest message of this peer that is a trace of a work."""
        traces = (one for one in reversed(self._exchanges) if one.direction == "out" and one.envelope.kind == "trace")
        return next((self._bridged(one) for one in traces if one.envelope.work_id == work.work_id), None)

    def reports(self, scope: str) -> list[BridgedMessage]:
        """The messages of this peer in a scope with their assigned works, latest first."""
        ours = [one for one in reversed(self._exchanges) if one.direction == "out" and one.scope == scope]
        return [self._with_assigned(self._bridged(one)) for one in ours if one.envelope.work_id is not None]

    def answered(self, work: WorkView) -> str:
        """The id of the envelope that this peer's next message on a work answers."""
        kinds = OPENING_KINDS if work.target == self.us else frozenset({"trace"})
        for envelope in reversed(self.envelopes):
            if envelope.work_id == work.work_id and envelope.sender != self.us and envelope.kind in kinds:
                return envelope.id
        return work.opening_id

    def sent(self, envelope_id: str) -> WorkView | Literal[True] | None:
        """The work of an envelope that this peer sent, True when it has none; None when it was not sent."""
        for envelope in self.envelopes:
            if envelope.id == envelope_id and envelope.sender == self.us:
                return self.works.get(envelope.work_id or "") or True
        return None

    def _found(self, foreign_id: str, scope: str, direction: BridgeDirection | None) -> Iterator[BridgedMessage]:
        for one in reversed(self._exchanges):
            if one.foreign_id == foreign_id and scope in ("", one.scope) and direction in (None, one.direction):
                yield self._bridged(one)

    def _with_assigned(self, known: BridgedMessage) -> BridgedMessage:
        assigned = self.passed_on.get(known.work.work_id) if known.work is not None else None
        return known if assigned is None else msgspec.structs.replace(known, work=self.works[assigned])

    def _bridged(self, exchange: _Exchange) -> BridgedMessage:
        return BridgedMessage(
            message=exchange.message,
            direction=exchange.direction,
            envelope_id=exchange.envelope.id,
            sender=exchange.envelope.sender,
            at=exchange.at,
            work=self.works.get(exchange.envelope.work_id or ""),
        )
