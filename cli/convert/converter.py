"""Offline conversion between the formats, always through envelopes (adapters.md, Cross-format; ways in and out).

A foreign line becomes the envelopes that its daemon would send, and those become the messages that the receiving daemons
would deliver. The history consists of the earlier lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from aghbus.cli.app.input import quoted_text
from aghbus.cli.convert.endpoints import Endpoints, answers_earlier_line, find_endpoints
from aghbus.cli.convert.history import ConvertedMessage, LineHistory, PeerHistory
from aghbus.cli.convert.loss import lost_members
from aghbus.protocol.agh.envelope import WORK_KINDS, Envelope, decode_document, parse
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.lifecycle import Transition
from aghbus.protocol.agh.limits import MAX_ENVELOPE_BYTES
from aghbus.protocol.agh.send import Draft, build, wire_document
from aghbus.protocol.base.errors import InvalidRequest, RequestError
from aghbus.protocol.formats.model import (
    Adapter,
    AgentMap,
    BridgeContext,
    BridgedEnvelope,
    Finding,
    SubmitPlan,
    has_errors,
)
from aghbus.protocol.formats.strict_json import read_json

NATIVE = "agh"
"""The name of the native format: one envelope per line."""
_NOT_APPLIED = frozenset({"ignored", "rejected"})


class ConvertOptions(NamedTuple):
    """The options of a conversion. `peer` and `target` replace missing senders and receivers; None for their defaults.
    `agents` maps names to peers; with an empty map, names that are not peer ids are replaced too. `now` is the time of
    submission in Unix seconds."""

    source: str
    target_format: str
    workspace_id: str
    channel: str
    now: int
    agents: dict[str, str]
    peer: str | None = None
    target: str | None = None
    work: str | None = None


DEFAULT_PEER, DEFAULT_TARGET = "agent-a", "agent-b"


class Converted(NamedTuple):
    """The result of one line: messages or envelopes in order, and the findings of both formats."""

    messages: list[Any]
    findings: list[Finding]

    @property
    def failed(self) -> bool:
        """Whether there is an error among the findings."""
        return has_errors(self.findings)


class _LineRejected(Exception):
    """The line cannot be converted; `findings` say why."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        super().__init__()
        self.findings = list(findings)


class Converter:
    """Converts lines in order. `source` and `target` are None for the native format."""

    def __init__(self, options: ConvertOptions, source: Adapter | None, target: Adapter | None) -> None:
        self._options = options
        self._source = source
        self._target = target
        self._lines = LineHistory(options.workspace_id, options.channel, options.work)
        self._count = 0

    def convert(self, raw: bytes) -> Converted:
        """Convert the next line. Errors are reported as findings only."""
        self._count += 1
        try:
            messages, findings = self._from_bus(raw) if self._source is None else self._from_format(raw, self._source)
        except _LineRejected as unfit:
            messages, findings = [], unfit.findings
        return Converted(messages, list(dict.fromkeys(findings)))

    # from envelopes

    def _from_bus(self, raw: bytes) -> tuple[list[Any], list[Finding]]:
        envelope = _envelope(raw)
        earlier = self._lines.envelope(envelope.sender, envelope.id)
        if earlier is not None and earlier.raw == raw:
            again = _warning("/id", "duplicate", "an earlier line is the same envelope: a receiver ignores it")
            return self._lines.result(envelope), [again]
        findings = [] if earlier is None else [_warning("/id", "id_conflict", "an earlier line has this id too")]
        if envelope.kind in WORK_KINDS and envelope.work_id is not None and envelope.surface and envelope.container:
            other = envelope.to or self._receiver(envelope)
            self._lines.missing_work(envelope.work_id, other, envelope.sender, envelope.surface, envelope.container)
        verdict = self._lines.apply(envelope)
        if verdict is not None and verdict.outcome in _NOT_APPLIED:
            why = f"after the earlier lines a receiver would not apply it: {verdict.reason}"
            findings.append(_warning("/work_id", verdict.reason or verdict.outcome, why))
        if self._target is None:
            messages = [json.loads(raw)]
        else:
            messages, more = self._deliver(envelope, verdict, self._target)
            findings += more
        self._lines.keep_result([envelope], messages)
        return messages, findings

    # from a foreign format

    def _from_format(self, raw: bytes, source: Adapter) -> tuple[list[Any], list[Finding]]:
        quoted = quoted_text(raw) if source.name == "sacp" else None
        text = raw if quoted is None else quoted.encode(errors="surrogatepass")
        context, history = self._context(read_json(text)[0], source.name)
        plan = source.submit(text, context, history)
        if plan.refused:
            raise _LineRejected(plan.findings)
        if plan.repeats:
            again = _warning("", "repeated", "an earlier line submitted the same message: it is sent once")
            return self._sent_before(context.us, history), [*plan.findings, again]
        envelopes = self._build(plan)
        verdicts = [self._lines.apply(envelope) for envelope in envelopes]
        messages, findings = self._deliver_all(plan, envelopes, verdicts)
        self._remember(source.name, plan, envelopes)
        self._lines.keep_result(envelopes, messages)
        return messages, [*plan.findings, *findings]

    def _context(self, message: Any, format: str) -> tuple[BridgeContext, PeerHistory]:
        options, names = self._options, self._options.agents
        endpoints = find_endpoints(format, message, AgentMap(names=names))
        us, other = self._endpoints(endpoints, format)
        agents = AgentMap(names=names) if names else AgentMap(own=us, other=other)
        history = PeerHistory(self._lines, format, us)
        work_id = None
        if (
            endpoints.reports
            and not answers_earlier_line(endpoints, history)
            and not self._has_one_open_work(endpoints, history)
        ):
            work_id = self._lines.unnamed_work(self._count, other, us).work_id
        context = BridgeContext(
            us=us,
            workspace_id=options.workspace_id,
            channel=options.channel,
            now=options.now,
            agents=agents,
            target=None if endpoints.reports else other,
            work_id=work_id,
        )
        return context, history

    def _has_one_open_work(self, endpoints: Endpoints, history: PeerHistory) -> bool:
        """Whether earlier lines leave exactly one open work for a message that does not identify its work."""
        return endpoints.key is None and self._options.work is None and len(history.assigned_works()) == 1

    def _endpoints(self, endpoints: Endpoints, format: str) -> tuple[str, str]:
        """The submitting peer, and the peer that replaces every other missing end."""
        options = self._options
        named = None if options.agents and options.peer else endpoints.own
        us = named or options.peer or DEFAULT_PEER
        fill = options.target or DEFAULT_TARGET
        if us == fill:
            fill = options.peer or DEFAULT_PEER
        if named is None and fill == self._submitter(endpoints, format, us, fill):
            us, fill = fill, us
        return us, fill if endpoints.other is None or endpoints.other == us else endpoints.other

    def _submitter(self, endpoints: Endpoints, format: str, us: str, fill: str) -> str:
        """The submitting peer by earlier lines: the receiver of the answered message, or the target of the only open work."""
        answered = [] if endpoints.key is None else self._lines.answered(format, *endpoints.key)
        if answered:
            return answered[-1].envelope.to or us
        their_turn = len(self._lines.open_for(fill)) == 1 and not self._lines.open_for(us)
        return fill if endpoints.reports and endpoints.key is None and their_turn else us

    def _build(self, plan: SubmitPlan) -> list[Envelope]:
        try:
            envelopes = [_sealed(draft, self._options.now) for draft in plan.drafts]
            self._lines.judge_own(envelopes)
        except RequestError as error:
            fault = Finding("", error.error_code, "error", error.message)
            raise _LineRejected([*plan.findings, fault]) from None
        return envelopes

    def _deliver_all(
        self, plan: SubmitPlan, envelopes: Sequence[Envelope], verdicts: Sequence[Transition | None]
    ) -> tuple[list[Any], list[Finding]]:
        if self._target is None:
            return [json.loads(envelope.raw) for envelope in envelopes], []
        messages: list[Any] = []
        findings: list[Finding] = []
        has_state = False
        for envelope, verdict in zip(envelopes, verdicts, strict=True):
            made, more = self._deliver(envelope, verdict, self._target, ours=True)
            messages += made
            has_state = has_state or (bool(made) and envelope.kind in WORK_KINDS)
            findings += more
        if not messages:
            findings.append(self._nothing())
        elif self._options.source != self._options.target_format:
            findings += lost_members(self._options.source, plan.message, messages, has_state=has_state)
        return messages, findings

    def _sent_before(self, us: str, history: PeerHistory) -> list[Any]:
        envelope = self._lines.envelope(us, history.sent_before) if history.sent_before is not None else None
        return self._lines.result(envelope) if envelope is not None else []

    def _remember(self, format: str, plan: SubmitPlan, envelopes: Sequence[Envelope]) -> None:
        carrier = next((one for one in envelopes if f"{format}.message" in one.extensions()), None)
        if carrier is not None:
            self._lines.remember(ConvertedMessage(format, plan.foreign_id, plan.scope, plan.message, carrier))

    # to a foreign format

    def _deliver(
        self, envelope: Envelope, verdict: Transition | None, target: Adapter, *, ours: bool = False
    ) -> tuple[list[Any], list[Finding]]:
        """The message for the receiving peer's agent. `ours`: the envelope was made from a foreign line."""
        us, names = self._receiver(envelope), self._options.agents
        context = BridgeContext(
            us=us,
            workspace_id=envelope.workspace_id,
            channel=envelope.channel,
            now=envelope.ts,
            agents=AgentMap(names=names) if names else AgentMap(own=us, other=envelope.sender),
        )
        work = self._lines.work(envelope.work_id)
        arrival = BridgedEnvelope(envelope=envelope, work=work, outcome=verdict.outcome if verdict else None)
        delivered = target.deliver(arrival, context, PeerHistory(self._lines, target.name, us))
        findings = list(delivered.findings)
        if delivered.message is None:
            return [], findings if ours else [*findings, self._nothing()]
        if target.name != self._options.source:
            self._lines.remember(
                ConvertedMessage(target.name, delivered.foreign_id, delivered.scope, delivered.message, envelope)
            )
        if not ours and delivered.native:
            document = envelope.document()
            content = {name: document[name] for name in ("body", "ext") if document.get(name)}
            findings += lost_members(NATIVE, content, [delivered.message], has_state=True)
        return [delivered.message], findings

    def _receiver(self, envelope: Envelope) -> str:
        """The receiving peer; for a broadcast, the one of the two that is not the sender."""
        peer, target = self._options.peer or DEFAULT_PEER, self._options.target or DEFAULT_TARGET
        return envelope.to or (target if envelope.sender == peer else peer)

    def _nothing(self) -> Finding:
        return _warning("", "not_carried", f"has no equivalent in format {self._options.target_format}")


def _envelope(raw: bytes) -> Envelope:
    """Parse the envelope in a line, at the time of its own timestamp."""
    try:
        ts = decode_document(raw).get("ts")
        return parse(raw, ts if isinstance(ts, int) else 0)
    except ProtocolError as error:
        path = "".join("/" + part for part in error.field.split(".")) if error.field else ""
        raise _LineRejected([Finding(path, error.reason, "error", error.rule)]) from None


def _sealed(draft: Draft, now: int) -> Envelope:
    """Build the envelope of a draft. Raises InvalidRequest (`too_large` over the size limit)."""
    size = len(msgspec.json.encode(wire_document(draft)))
    if size > MAX_ENVELOPE_BYTES:
        raise InvalidRequest(
            f"the envelope would have {size} bytes, over the limit of {MAX_ENVELOPE_BYTES}", code="too_large"
        )
    return build(draft, now)


def _warning(path: str, rule: str, message: str) -> Finding:
    return Finding(path, rule, "warning", message)
