"""Reads envelopes for an agent of SACP: text as a string, final traces and questions as a response object."""

from typing import Any, Final

import msgspec

from aghbus.protocol.agh.bodies import Capability, Receipt, Say, Trace
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.formats.attachments import carried_message, carried_warning, compact, say_text
from aghbus.protocol.formats.common import error, receipt_ends, warning
from aghbus.protocol.formats.model import NOT_DELIVERED, BridgeContext, BridgedEnvelope, Delivered, Finding
from aghbus.protocol.formats.sacp.schema import STATE_OF, STATUS_OF, fallback, response_faults
from aghbus.protocol.formats.sacp.text import Extracted, extract
from aghbus.protocol.formats.strict_json import check_value

_NAME: Final = "sacp"


def deliver_text(arrival: BridgedEnvelope) -> Delivered:
    """The complete text of a say; a capability as compact JSON."""
    body = arrival.envelope.body
    if isinstance(body, Capability):
        return Delivered(message=compact(body.document), native=True)
    if not isinstance(body, Say):
        return NOT_DELIVERED
    carried, faults = carried_message(_NAME, arrival)
    if carried is not None:
        faults = _text_faults(carried, body.text)
        if not faults:
            return Delivered(message=carried)
    return Delivered(message=body.text, findings=carried_warning(faults), native=True)


class ReceivedResponse(msgspec.Struct, frozen=True):
    """The response in a received envelope, before guardrails.

    `stage` is that of the extraction from the text `raw`, or `object` (carried as an object), or `native` (generated).
    `native` as in Delivered.
    """

    response: dict[str, Any]
    stage: str
    findings: tuple[Finding, ...] = ()
    raw: str | None = None
    native: bool = False


def read_response(arrival: BridgedEnvelope, context: BridgeContext) -> ReceivedResponse | None:
    """The response of a final trace, a question, or a receipt that ends a work; None for others.

    A carried text, and the text of a native trace, are sanitized like a submitted one (section 7.1).
    """
    body = arrival.envelope.body
    if isinstance(body, Receipt):
        ended = receipt_ends(body, arrival.work, context)
        return ReceivedResponse(_from_receipt(body), "native", native=True) if ended else None
    if not isinstance(body, Trace) or body.state not in STATUS_OF:
        return None
    carried, faults = carried_message(_NAME, arrival)
    if carried is not None:
        found = _from_text(carried) if isinstance(carried, str) else ReceivedResponse(carried, "object")
        faults = response_faults(found.response) or _state_faults(found.response, body.state)
        if not faults:
            return found
    return _from_trace(body, carried_warning(faults))


def extraction_findings(extracted: Extracted) -> tuple[Finding, ...]:
    """Warnings when a text is not exactly a response (sections 3.1 and 7); parse and schema errors are warnings here."""
    if extracted.stage == "whole":
        return ()
    if extracted.stage != "fallback":
        where = "a fenced block" if extracted.stage == "fence" else "braces in other text"
        return (warning("", "surrounding_text", f"the response was found in {where}"),)
    faults = (msgspec.structs.replace(fault, severity="warning") for fault in extracted.faults)
    return (*faults, warning("", "fallback", "no response was found: the text is sent as a failure"))


def _from_text(text: str) -> ReceivedResponse:
    extracted = extract(text)
    response = fallback(text) if extracted.response is None else extracted.response
    return ReceivedResponse(response, extracted.stage, extraction_findings(extracted), text)


def _text_faults(carried: Any, text: str) -> tuple[Finding, ...]:
    if not isinstance(carried, str):
        return (error("", "type", "must be a string: the text of a say"),)
    if say_text(carried, None) != text:
        return (error("", "disagrees", "is not the text of the envelope"),)
    return ()


def _state_faults(carried: dict[str, Any], state: str) -> tuple[Finding, ...]:
    if STATE_OF[carried["status"]] == state:
        return ()
    return (error("/status", "disagrees", f"does not mean the envelope's state {state}"),)


def _from_trace(body: Trace, faults: tuple[Finding, ...]) -> ReceivedResponse:
    """The response for a native trace: the one in its text if there is one, else with an empty thought.

    The text is the result if that is a string, or the message of a trace without a result. A result that is not an object is
    wrapped in `result`.
    """
    result = None if body.result is None else decode_json(body.result)
    text = result if isinstance(result, str) else body.message if result is None else None
    if text is not None:
        found = _from_text(text)
        if found.stage != "fallback" and not _state_faults(found.response, body.state):
            return msgspec.structs.replace(found, findings=faults + found.findings, native=True)
    if check_value(result):
        faults += (warning("/data/result", "as_text", "is sent as JSON text: it exceeds the limits of strict JSON"),)
        result = compact(result)
    if not isinstance(result, dict):
        result = {} if result is None else {"result": result}
    response = _response(STATUS_OF[body.state], result, body.message or "")
    return ReceivedResponse(response, "native", faults, native=True)


def _from_receipt(body: Receipt) -> dict[str, Any]:
    data = {"receipt": body.status}
    if body.reason_code is not None:
        data["reason_code"] = body.reason_code
    return _response("failure", data, body.detail or "")


def _response(status: str, data: dict[str, Any], message: str) -> dict[str, Any]:
    return {"thought": "", "status": status, "data": data, "message": message}
