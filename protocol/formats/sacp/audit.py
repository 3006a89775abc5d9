"""Rows of the audit table (seed section 9.2): every response and text that passed, in both directions."""

from typing import Any

import msgspec

from aghbus.protocol.formats.model import BridgeContext, BridgedEnvelope, Delivered, SubmitPlan


def sent_row(
    plan: SubmitPlan,
    context: BridgeContext,
    work_id: str | None,
    *,
    raw: str,
    stage: str = "text",
    original: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The row of a submitted text; `original` is the response in it before guardrails, None for a text without one."""
    row = {
        "at": context.now,
        "direction": "sent",
        "peer": context.us,
        "work_id": work_id,
        "envelope_id": plan.drafts[0].id if plan.drafts else None,
    }
    return row | _content(raw, stage, original, plan.message, plan.findings)


def received_row(
    delivered: Delivered,
    arrival: BridgedEnvelope,
    context: BridgeContext,
    *,
    raw: str | None,
    stage: str = "text",
    original: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The row of a delivered message; `original` and `raw` as for `sent_row`, `raw` None where no text was searched."""
    envelope = arrival.envelope
    row = {
        "at": context.now,
        "direction": "received",
        "peer": envelope.sender,
        "work_id": envelope.work_id,
        "envelope_id": envelope.id,
    }
    return row | _content(raw, stage, original, delivered.message, delivered.findings)


def _content(
    raw: str | None, stage: str, original: dict[str, Any] | None, passed: Any, findings: tuple[Any, ...]
) -> dict[str, Any]:
    response = original is not None and isinstance(passed, dict)
    return {
        "status": passed["status"] if response else None,
        "thought": None if original is None else original["thought"],
        "stage": stage,
        "raw": raw,
        "original": original,
        "sent": passed if response else None,
        "findings": [msgspec.to_builtins(finding) for finding in findings],
    }
