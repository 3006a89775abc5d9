"""Offline conversion between the formats, always by way of the bus form (adapters.md, Cross-format; ways in and out).

A foreign line becomes envelopes as its daemon would send them, and those become messages as the daemons that receive them
would hand them out. The lines before are all that is known of the past.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from aghbus.cli.convert.endpoints import Endpoints, find_endpoints, told_by_earlier
from aghbus.cli.convert.history import ConvertedMessage, LineHistory, PeerHistory
from aghbus.cli.convert.loss import lost_members
from aghbus.protocol.adapters.model import (
    Adapter,
    AgentMap,
    BridgeContext,
    BridgedEnvelope,
    Finding,
    SubmitPlan,
    has_errors,
)
from aghbus.protocol.adapters.strict_json import read_json
from aghbus.protocol.envelope import WORK_KINDS, Envelope, decode_document, parse
from aghbus.protocol.errors import InvalidRequest, ProtocolError, RequestError
from aghbus.protocol.lifecycle import Step
from aghbus.protocol.limits import MAX_ENVELOPE_BYTES
from aghbus.protocol.send import Draft, build, wire_document

NATIVE = "agh"
"""The name of the bus form itself: one envelope a line."""
_NOT_APPLIED = frozenset({"ignored", "rejected"})


class ConvertOptions(NamedTuple):
    """What the options say. `peer` and `target` fill missing ends; None for their defaults. `agents` maps names to peers;
    with an empty map names that are no peer ids are filled too. `now` is the moment of hand-over, Unix seconds."""

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
    """What became of one line: foreign messages or envelopes, in order, and the findings of both sides."""

    messages: list[Any]
    findings: list[Finding]

    @property
    def failed(self) -> bool:
        """Whether there is an error among the findings."""
        return has_errors(self.findings)


class _LineRejected(Exception):
    """The line cannot be converted, for these findings."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        super().__init__()
        self.findings = list(findings)


class Converter:
    """Converts lines in order. `source` and `target` are None for the bus form."""

    def __init__(self, settings: ConvertOptions, source: Adapter | None, target: Adapter | None) -> None:
        self._settings = settings
        self._source = source
        self._target = target
        self._lines = LineHistory(settings.workspace_id, settings.channel, settings.work)
        self._count = 0

    def convert(self, raw: bytes) -> Converted:
        """The next line; whatever its bytes, only findings say that something is wrong with it."""
        self._count += 1
        try:
            messages, findings = self._from_bus(raw) if self._source is None else self._from_format(raw, self._source)
        except _LineRejected as unfit:
            messages, findings = [], unfit.findings
        return Converted(messages, list(dict.fromkeys(findings)))

    # from the bus form

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
            messages, more = self._hand_out(envelope, verdict, self._target)
            findings += more
        self._lines.keep_result([envelope], messages)
        return messages, findings

    # from a foreign format

    def _from_format(self, raw: bytes, source: Adapter) -> tuple[list[Any], list[Finding]]:
        text = _raw_text(raw) if source.name == "sacp" else raw
        context, history = self._place(read_json(text)[0], source.name)
        plan = source.submit(text, context, history)
        if plan.refused:
            raise _LineRejected(plan.findings)
        if plan.repeats:
            again = _warning("", "repeated", "an earlier line handed over the same message: it is sent once")
            return self._sent_before(context.us, history), [*plan.findings, again]
        envelopes = self._built(plan)
        verdicts = [self._lines.apply(envelope) for envelope in envelopes]
        messages, findings = self._received(plan, envelopes, verdicts)
        self._remember(source.name, plan, envelopes)
        self._lines.keep_result(envelopes, messages)
        return messages, [*plan.findings, *findings]

    def _place(self, message: Any, format: str) -> tuple[BridgeContext, PeerHistory]:
        settings, names = self._settings, self._settings.agents
        ends = find_endpoints(format, message, AgentMap(names=names))
        us, other = self._ends(ends, format)
        agents = AgentMap(names=names) if names else AgentMap(own=us, other=other)
        history = PeerHistory(self._lines, format, us)
        work_id = None
        if ends.reports and not told_by_earlier(ends, history) and not self._in_hand(ends, history):
            work_id = self._lines.unnamed_work(self._count, other, us).work_id
        context = BridgeContext(
            us=us,
            workspace_id=settings.workspace_id,
            channel=settings.channel,
            now=settings.now,
            agents=agents,
            target=None if ends.reports else other,
            work_id=work_id,
        )
        return context, history

    def _in_hand(self, ends: Endpoints, history: PeerHistory) -> bool:
        """Whether earlier lines leave exactly one work that a message without an id of what it answers can be about."""
        return ends.key is None and self._settings.work is None and len(history.assigned_works()) == 1

    def _ends(self, ends: Endpoints, format: str) -> tuple[str, str]:
        """The peer that hands the message over, and the one that stands for every other end that is missing."""
        settings = self._settings
        named = None if settings.agents and settings.peer else ends.own
        us = named or settings.peer or DEFAULT_PEER
        fill = settings.target or DEFAULT_TARGET
        if us == fill:
            fill = settings.peer or DEFAULT_PEER
        if named is None and fill == self._told_end(ends, format, us, fill):
            us, fill = fill, us
        return us, fill if ends.other is None or ends.other == us else ends.other

    def _told_end(self, ends: Endpoints, format: str, us: str, fill: str) -> str:
        """Which of two filled ends earlier lines make it: the receiver of what it answers, or of the one open work."""
        answered = self._lines.with_id(format, *ends.key) if ends.key is not None else []
        if answered:
            return answered[-1].envelope.to or us
        their_turn = len(self._lines.open_for(fill)) == 1 and not self._lines.open_for(us)
        return fill if ends.reports and ends.key is None and their_turn else us

    def _built(self, plan: SubmitPlan) -> list[Envelope]:
        try:
            envelopes = [_sealed(draft, self._settings.now) for draft in plan.drafts]
            self._lines.judge_own(envelopes)
        except RequestError as error:
            fault = Finding("", error.error_code, "error", error.message)
            raise _LineRejected([*plan.findings, fault]) from None
        return envelopes

    def _received(
        self, plan: SubmitPlan, envelopes: Sequence[Envelope], verdicts: Sequence[Step | None]
    ) -> tuple[list[Any], list[Finding]]:
        if self._target is None:
            return [json.loads(envelope.raw) for envelope in envelopes], []
        messages: list[Any] = []
        findings: list[Finding] = []
        for envelope, verdict in zip(envelopes, verdicts, strict=True):
            made, more = self._hand_out(envelope, verdict, self._target, ours=True)
            messages += made
            findings += more
        if not messages:
            findings.append(self._nothing())
        elif self._settings.source != self._settings.target_format:
            findings += lost_members(self._settings.source, plan.message, messages)
        return messages, findings

    def _sent_before(self, us: str, history: PeerHistory) -> list[Any]:
        envelope = self._lines.envelope(us, history.sent_before) if history.sent_before is not None else None
        return self._lines.result(envelope) if envelope is not None else []

    def _remember(self, format: str, plan: SubmitPlan, envelopes: Sequence[Envelope]) -> None:
        carrier = next((one for one in envelopes if f"{format}.message" in one.extensions()), None)
        if carrier is not None:
            self._lines.remember(ConvertedMessage(format, plan.foreign_id, plan.scope, plan.message, carrier))

    # to a foreign format

    def _hand_out(
        self, envelope: Envelope, verdict: Step | None, target: Adapter, *, ours: bool = False
    ) -> tuple[list[Any], list[Finding]]:
        """What the agent of the receiving peer gets. `ours`: the envelope was made from a line, which is judged as a whole."""
        us, names = self._receiver(envelope), self._settings.agents
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
        if target.name != self._settings.source:
            self._lines.remember(
                ConvertedMessage(target.name, delivered.foreign_id, delivered.scope, delivered.message, envelope)
            )
        if not ours and delivered.native:
            document = envelope.document()
            content = {name: document[name] for name in ("body", "ext") if document.get(name)}
            findings += lost_members(NATIVE, content, [delivered.message])
        return [delivered.message], findings

    def _receiver(self, envelope: Envelope) -> str:
        """The peer whose agent gets it: its receiver, or for a broadcast whoever is not the sender."""
        peer, target = self._settings.peer or DEFAULT_PEER, self._settings.target or DEFAULT_TARGET
        return envelope.to or (target if envelope.sender == peer else peer)

    def _nothing(self) -> Finding:
        return _warning("", "not_carried", f"says nothing to agents of {self._settings.target_format}")


def _envelope(raw: bytes) -> Envelope:
    """The envelope in a line, as judged in the second in which it was made."""
    try:
        ts = decode_document(raw).get("ts")
        return parse(raw, ts if isinstance(ts, int) else 0)
    except ProtocolError as error:
        path = "".join("/" + part for part in error.field.split(".")) if error.field else ""
        raise _LineRejected([Finding(path, error.reason, "error", error.rule)]) from None


def _raw_text(line: bytes) -> bytes:
    """What an agent of SACP wrote: a line that is a JSON string stands for its text."""
    if not line.lstrip().startswith(b'"'):
        return line
    try:
        text = json.loads(line)
    except (ValueError, RecursionError):
        return line
    return text.encode(errors="surrogatepass") if isinstance(text, str) else line


def _sealed(draft: Draft, now: int) -> Envelope:
    """The envelope of a draft. Raises InvalidRequest, with the code `too_large` for one over the limit."""
    size = len(msgspec.json.encode(wire_document(draft)))
    if size > MAX_ENVELOPE_BYTES:
        raise InvalidRequest(
            f"the envelope would have {size} bytes, over the limit of {MAX_ENVELOPE_BYTES}", code="too_large"
        )
    return build(draft, now)


def _warning(path: str, rule: str, message: str) -> Finding:
    return Finding(path, rule, "warning", message)
