"""Format `humaninloop`: the input and output envelopes of ADR-007 (seed 001; adapters.md, humaninloop).

An input envelope opens a work, or continues one that we opened. An output envelope is the trace of the assigned work. The
format has neither ids nor agent names: the caller names the target, and ids are derived from the content.
"""

from typing import Any, Final

import msgspec

from aghbus.protocol.agh.bodies import Capability, Receipt, Say, Trace
from aghbus.protocol.agh.envelope import CONVERSATION_KINDS
from aghbus.protocol.agh.identifiers import is_peer
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.formats.attachments import (
    carried_message,
    carried_warning,
    cut_text,
    extension,
)
from aghbus.protocol.formats.common import (
    assigned_work,
    closed,
    error,
    next_id,
    not_ours,
    receipt_ends,
    say,
    say_in_work,
    secrets_in,
    trace,
)
from aghbus.protocol.formats.derived_ids import canonical, digest, envelope_id, work_id
from aghbus.protocol.formats.humaninloop.bodies import result_of, say_body, thread_of, truncate_list
from aghbus.protocol.formats.humaninloop.files import FilePlan, plan_files
from aghbus.protocol.formats.humaninloop.native import input_of, output_of
from aghbus.protocol.formats.humaninloop.shape import ShapeKind, check_input, check_output, kind_of, state_of
from aghbus.protocol.formats.model import (
    NOT_DELIVERED,
    BridgeContext,
    BridgedEnvelope,
    Delivered,
    Finding,
    MessageHistory,
    SubmitPlan,
    has_errors,
)
from aghbus.protocol.formats.strict_json import read_json

NAME: Final = "humaninloop"
_REPORTED: Final = frozenset({"completed", "failed", "canceled", "needs_input"})  # a working trace has no equivalent

_Findings = tuple[Finding, ...]


class HumanInLoopOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`feature_root`: the prefix to strip from artifact paths when the work's input envelope is unknown or names none."""

    feature_root: str | None = None


class HumanInLoop:
    """The adapter; see `model.Adapter`."""

    name: Final = NAME
    delivered_kinds: Final = CONVERSATION_KINDS

    def __init__(self, options: HumanInLoopOptions | None = None) -> None:
        self.options = options or HumanInLoopOptions()

    def submit(self, text: bytes, context: BridgeContext, history: MessageHistory) -> SubmitPlan:
        """An input envelope becomes a say, an output envelope a trace (adapters.md, humaninloop)."""
        message, faults = read_json(text)
        if faults:
            return SubmitPlan(message=None, findings=faults)
        kind = kind_of(message)
        if isinstance(kind, Finding):
            return SubmitPlan(message=message, findings=(kind,))
        findings = (check_input if kind == "input" else check_output)(message) + secrets_in(message)
        if has_errors(findings):
            return SubmitPlan(message=message, findings=findings)
        if kind == "output":
            return self._report(message, findings, context, history)
        return _open_or_continue(message, findings, context, history)

    def deliver(self, arrival: BridgedEnvelope, context: BridgeContext, history: MessageHistory) -> Delivered:
        """Says and capabilities become inputs; final traces, questions, and receipts that end a work become outputs."""
        body = arrival.envelope.body
        if arrival.outcome in ("ignored", "rejected"):
            return NOT_DELIVERED
        match body:
            case Say():
                message, faults = self._carried("input", arrival, history)
                return (
                    _as_sent(message, faults)
                    if message is not None
                    else _native(input_of(arrival, body, history), faults)
                )
            case Capability() if arrival.envelope.work_id is not None:
                return _native(input_of(arrival, body, history))
            case Trace() if body.state in _REPORTED:
                scope = arrival.envelope.container or ""
                message, faults = self._carried("output", arrival, history)
                if message is not None:
                    return _as_sent(message, faults, scope)
                return _native(output_of(arrival, body), faults, scope)
            case Receipt() if receipt_ends(body, arrival.work, context):
                return _native(output_of(arrival, body), scope=arrival.envelope.container or "")
        return NOT_DELIVERED

    def _report(
        self, message: dict[str, Any], findings: _Findings, context: BridgeContext, history: MessageHistory
    ) -> SubmitPlan:
        """The trace of an output envelope on the assigned work."""
        foreign_id = digest("output", canonical(message))
        work = _reported_work(foreign_id, context, history)
        if isinstance(work, Finding):
            return SubmitPlan(message=message, findings=(*findings, work))
        files = self._files(message, work, history)
        answered = history.answered(work)
        message_id = next_id(NAME, "trace", context, work, history, canonical(message))
        repeats = history.sent(message_id) is not None
        findings += (*files.findings, *not_ours(work, context.us), *(() if repeats else closed(work)))
        if has_errors(findings):
            return SubmitPlan(message=message, findings=findings)
        body: dict[str, Any] = {
            "state": state_of(message),
            "message": cut_text(message["summary"]),
            "result": result_of(message, files),
        }
        references, shortened = truncate_list([file.reference() for file in files.files], "/artifacts", "artifact_refs")
        if references:
            body["artifact_refs"] = references
        findings += shortened
        draft = trace(
            context,
            work,
            message_id,
            body,
            reply_to=answered,
            causation_id=answered,
            ext=extension(NAME, message, findings),
        )
        return SubmitPlan(
            message=message,
            findings=findings,
            drafts=(draft,),
            repeats=repeats,
            foreign_id=foreign_id,
            scope=work.container,
        )

    def _files(self, message: dict[str, Any], work: WorkView | None, history: MessageHistory) -> FilePlan:
        known = history.opening(work) if work is not None else None
        return plan_files(message, self.options.feature_root, known.message if known is not None else None)

    def _carried(
        self, kind: ShapeKind, arrival: BridgedEnvelope, history: MessageHistory
    ) -> tuple[dict[str, Any] | None, _Findings]:
        """The carried message with its warnings, or None with the findings when it is missing or invalid."""
        value, faults = carried_message(NAME, arrival)
        if value is None:
            return None, carried_warning(faults)
        found = self._check_carried(kind, value, arrival, history)
        errors = tuple(finding for finding in found if finding.severity == "error")
        return (None, carried_warning(errors)) if errors else (value, found)

    def _check_carried(
        self, kind: ShapeKind, value: Any, arrival: BridgedEnvelope, history: MessageHistory
    ) -> _Findings:
        """The findings of a carried message; its kind and state must match the envelope."""
        named = kind_of(value)
        if isinstance(named, Finding):
            return (named,)
        if named != kind:
            return (error("", "carried_kind", f"an {named} envelope does not belong in a {arrival.envelope.kind}"),)
        findings = (check_input if kind == "input" else check_output)(value) + secrets_in(value)
        if kind == "input" or has_errors(findings):
            return findings
        body = arrival.envelope.body
        if isinstance(body, Trace) and body.state != state_of(value):
            findings += (error("/recommendation", "carried_state", f"means {state_of(value)}, the trace {body.state}"),)
        return findings + self._files(value, arrival.work, history).findings


def _reported_work(foreign_id: str, context: BridgeContext, history: MessageHistory) -> WorkView | Finding:
    """The assigned work; without one, the work that the same output ended before (a repetition)."""
    work = assigned_work(context, history)
    if not isinstance(work, Finding) or work.rule != "no_work":
        return work
    earlier = history.find(foreign_id, direction="out")
    return earlier.work if earlier is not None and earlier.work is not None else work


def _open_or_continue(
    message: dict[str, Any], findings: _Findings, context: BridgeContext, history: MessageHistory
) -> SubmitPlan:
    """The say of an input envelope: in the caller's work if we opened that, else opening a work."""
    named = None
    if context.work_id is not None:
        named = history.work(context.work_id)
        if named is None:
            unknown = error("", "unknown_work", f"no work {context.work_id!r} is known here")
            return SubmitPlan(message=message, findings=(*findings, unknown))
        if named.initiator == context.us:
            return _continue(message, findings, named, context, history)
    faults = _bad_target(context)
    if faults:
        return SubmitPlan(message=message, findings=findings + faults)
    return _open(message, findings, named, context, history)


def _open(
    message: dict[str, Any],
    findings: _Findings,
    assigned: WorkView | None,
    context: BridgeContext,
    history: MessageHistory,
) -> SubmitPlan:
    """A say that opens a work; `assigned` is the assigned work that causes it."""
    message_id, repeats = _opening_id(canonical(message), context, history)
    body, shortened = say_body(message)
    findings += shortened
    draft = say(
        context,
        context.target or "",
        message_id,
        thread_of(message["context"], message_id),
        body,
        work_id=work_id(message_id),
        causation_id=assigned.opening_id if assigned is not None else None,
        ext=extension(NAME, message, findings),
    )
    return SubmitPlan(message=message, findings=findings, drafts=(draft,), repeats=repeats)


def _opening_id(content: bytes, context: BridgeContext, history: MessageHistory) -> tuple[str, bool]:
    """The id of an opening, and whether it was sent before. Equal content is the same opening while its work is open.

    Afterwards it is a new opening, whose id also hashes the previous id.
    """
    before: str | None = None
    while True:
        message_id = envelope_id(NAME, "say", context.us, context.target, before, content, context.key)
        sent = history.sent(message_id)
        if sent is None:
            return message_id, False
        if sent is True or not (sent.is_terminal or sent.channel != context.channel):
            return message_id, True
        before = message_id


def _continue(
    message: dict[str, Any], findings: _Findings, work: WorkView, context: BridgeContext, history: MessageHistory
) -> SubmitPlan:
    """A say in a work that we opened, as the answer to its newest trace."""
    answered = history.answered(work)
    message_id = next_id(NAME, "say", context, work, history, canonical(message))
    repeats = history.sent(message_id) is not None
    if not repeats:
        findings += closed(work)
    if context.target not in (None, work.target):
        findings += (
            error("", "target_mismatch", f"work {work.work_id} is assigned to {work.target}: omit the target"),
        )
    if has_errors(findings):
        return SubmitPlan(message=message, findings=findings)
    body, shortened = say_body(message)
    findings += shortened
    draft = say_in_work(
        context,
        work,
        message_id,
        body,
        reply_to=answered,
        causation_id=answered,
        ext=extension(NAME, message, findings),
    )
    return SubmitPlan(message=message, findings=findings, drafts=(draft,), repeats=repeats)


def _bad_target(context: BridgeContext) -> _Findings:
    """The error when an opening has no valid target. The caller has to name it: messages of this format do not."""
    if context.target is None:
        return (
            error(
                "", "no_target", "opens a work, but has no target: name a peer (API: `target`; aghctl: --target PEER)"
            ),
        )
    if not is_peer(context.target):
        return (error("", "bad_target", f"the target {context.target!r} is not a peer id"),)
    if context.target == context.us:
        return (error("", "bad_target", "the target is this peer itself: a work needs another peer"),)
    return ()


def _as_sent(message: Any, findings: _Findings, scope: str = "") -> Delivered:
    return Delivered(message=message, findings=findings, scope=scope)


def _native(made: tuple[dict[str, Any], _Findings], faults: _Findings = (), scope: str = "") -> Delivered:
    message, findings = made
    return Delivered(message=message, findings=faults + findings, native=True, scope=scope)
