"""Generates ADR-007 messages for envelopes that carry none: known members are set, others stay empty (adapters.md).

Content without a member in the format goes into `task.params` or a note, with a warning.
"""

import json
from typing import Any, Final, TypeGuard

import msgspec

from aghbus.protocol.agh.bodies import Capability, Receipt, Say, Trace
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.base.text import has_control, is_blank
from aghbus.protocol.formats.attachments import cut_text
from aghbus.protocol.formats.common import warning
from aghbus.protocol.formats.humaninloop.files import plan_files
from aghbus.protocol.formats.humaninloop.shape import check_input, check_output
from aghbus.protocol.formats.model import BridgedEnvelope, Finding, MessageHistory, has_errors
from aghbus.protocol.formats.strict_json import check_value

NATIVE_WORKFLOW: Final = "native"  # a native envelope names no workflow

_Made = tuple[dict[str, Any], tuple[Finding, ...]]


def input_of(arrival: BridgedEnvelope, body: Say | Capability, history: MessageHistory) -> _Made:
    """A valid input envelope for a say or a capability, and the findings.

    In a work that an input envelope opened, context and paths come from that; else the feature is the thread or room.
    """
    opening = _opening_of(arrival, history)
    context = opening["context"] if opening is not None else _context(arrival)
    paths: dict[str, str] = dict(opening["paths"]) if opening is not None else {}
    findings: tuple[Finding, ...] = ()
    if isinstance(body, Say):
        action = body.intent if body.intent and not is_blank(body.intent) else "say"
        params: dict[str, Any] = {"text": body.text}
        findings = _take_artifacts(body, paths, params)
    else:
        action, params = "capability", {"capability": _record(body)}
    message: dict[str, Any] = {"context": context, "paths": paths, "task": {"action": action, "params": params}}
    notes = _last_notes(arrival, history)
    if notes:
        message["prior_context"] = notes
    if arrival.envelope.work_id is None:
        findings += (warning("", "no_work", "has no work: no output can report on it"),)
    return message, findings


def output_of(arrival: BridgedEnvelope, body: Trace | Receipt) -> _Made:
    """A valid output envelope for a final trace, a question, or the receipt that ended a work."""
    if isinstance(body, Receipt):
        reason = ": ".join(part for part in (body.status, body.reason_code, body.detail) if part)
        return _output(success=False, recommendation="escalate", summary=reason), ()
    result = _value(body.result)
    wants_retry = isinstance(result, dict) and result.get("recommendation") == "retry"
    message = _output(
        success=body.state == "completed",
        recommendation=_recommended(body.state, wants_retry=wants_retry),
        summary=body.message if body.message and not is_blank(body.message) else f"the work is {body.state}",
    )
    left = _take_result(message, result)
    findings: tuple[Finding, ...] = ()
    notes: list[str] = message.setdefault("notes", [])
    if left not in (None, {}):
        notes.append(f"result: {_text(left)}")
        findings += (warning("/notes", "result_as_note", "the result was added as a note"),)
    if body.artifact_refs and not message["artifacts"]:
        references = ",".join(bytes(reference).decode() for reference in body.artifact_refs)
        notes.append(cut_text(f"artifact_refs: [{references}]"))
        findings += (warning("/artifacts", "references_as_note", "artifact references were added as a note"),)
    if not notes:
        del message["notes"]
    return message, findings


def _opening_of(arrival: BridgedEnvelope, history: MessageHistory) -> dict[str, Any] | None:
    """The valid input envelope that opened the work of an envelope, if there is one."""
    known = history.opening(arrival.work) if arrival.work is not None else None
    if known is None or has_errors(check_input(known.message)):
        return None
    opening: dict[str, Any] = known.message
    return opening


def _output(*, success: bool, recommendation: str, summary: str) -> dict[str, Any]:
    return {"success": success, "summary": summary, "artifacts": [], "recommendation": recommendation}


def _recommended(state: str, *, wants_retry: bool) -> str:
    """The recommendation for a native state (adapters.md, humaninloop, the table); `escalate` for canceled."""
    if state == "completed":
        return "proceed"
    return "retry" if state == "failed" and wants_retry else "escalate"


def _context(arrival: BridgedEnvelope) -> dict[str, Any]:
    return {"feature_id": arrival.envelope.container or "", "workflow": NATIVE_WORKFLOW, "iteration": 1}


def _last_notes(arrival: BridgedEnvelope, history: MessageHistory) -> list[str]:
    """The notes of the last output in this thread (seed 001: notes are context for the next agent)."""
    known = history.last(arrival.envelope.container or "")
    notes = known.message.get("notes") if known is not None and isinstance(known.message, dict) else None
    return list(notes) if _are_strings(notes) else []


def _take_artifacts(body: Say, paths: dict[str, str], params: dict[str, Any]) -> tuple[Finding, ...]:
    """Add artifacts with a path to `paths` under their name, and others to `params.artifacts`."""
    others: list[Any] = []
    dropped = 0
    for number, raw in enumerate(body.artifacts, start=1):
        artifact = _value(raw)
        path = artifact.get("path") if isinstance(artifact, dict) else None
        if isinstance(path, str) and not is_blank(path) and not has_control(path):
            paths[_free_name(artifact.get("name"), number, paths)] = path
        elif artifact is None or check_value({"task": {"params": {"artifacts": [artifact]}}}):
            dropped += 1
        else:
            others.append(artifact)
    findings: tuple[Finding, ...] = ()
    if others:
        params["artifacts"] = others
        findings += (
            warning("/task/params/artifacts", "artifacts_as_params", "artifacts without a path became parameters"),
        )
    if dropped:
        findings += (warning("/task/params", "artifacts_dropped", f"{dropped} artifacts could not be converted"),)
    return findings


def _free_name(name: Any, number: int, paths: dict[str, str]) -> str:
    wanted = name if isinstance(name, str) and name else f"artifact_{number}"
    return wanted if wanted not in paths else f"{wanted}_{number}"


def _take_result(message: dict[str, Any], result: Any) -> Any:
    """Move artifacts and notes of a result, in the form that this adapter writes, into `message`; return the rest."""
    if not isinstance(result, dict):
        return result
    left = {name: value for name, value in result.items() if name not in ("success", "recommendation")}
    notes = left.get("notes")
    if _are_strings(notes):
        message["notes"] = notes
        del left["notes"]
    candidate = {**message, "artifacts": left.get("artifacts")}
    if not check_value(candidate) and not _has_errors(candidate):
        message["artifacts"] = left.pop("artifacts")
    return left


def _has_errors(message: dict[str, Any]) -> bool:
    return has_errors(check_output(message)) or has_errors(plan_files(message).findings)


def _record(body: Capability) -> dict[str, Any]:
    document = dict(body.document)
    too_much = check_value({"task": {"params": {"capability": document}}})
    return {"id": body.id, "digest": body.digest} if too_much else document


def _are_strings(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _value(raw: msgspec.Raw | None) -> Any:
    try:
        return None if raw is None else decode_json(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _text(value: Any) -> str:
    """A JSON value as text; numbers may have any size."""
    return cut_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
