"""Rows of the audit table (seed section 9.2): every response and text that passed, in both directions."""

from typing import Any, TypeVar

import msgspec

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.formats.model import BridgeContext, Delivered, SubmitPlan

_Result = TypeVar("_Result", SubmitPlan, Delivered)


def with_row(
    result: _Result,
    context: BridgeContext,
    work_id: str | None,
    *,
    raw: str | None,
    arrived: Envelope | None = None,
    stage: str = "text",
    original: dict[str, Any] | None = None,
) -> _Result:
    """`result` with its row. `arrived` is the envelope of a delivered message, None for a submitted text.

    `raw` is the text, None where no text was searched; `original` the response in it before guardrails, None for a text
    without one.
    """
    passed, drafts = result.message, result.drafts if isinstance(result, SubmitPlan) else ()
    response = original is not None and isinstance(passed, dict)
    envelope = arrived or next(iter(drafts), None)
    row = {
        "at": context.now,
        "direction": "sent" if arrived is None else "received",
        "peer": context.us if arrived is None else arrived.sender,
        "work_id": work_id,
        "envelope_id": None if envelope is None else envelope.id,
        "status": passed["status"] if response else None,
        "thought": None if original is None else original["thought"],
        "stage": stage,
        "raw": raw,
        "original": original,
        "sent": passed if response else None,
        "findings": [msgspec.to_builtins(finding) for finding in result.findings],
    }
    return msgspec.structs.replace(result, record=row)
