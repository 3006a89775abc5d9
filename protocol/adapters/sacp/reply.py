"""Envelopes as an agent of SACP gets them: words as a string, ends and questions as a response object."""

from typing import Any, Final

import msgspec

from aghbus.protocol.adapters.attachments import carried_message, compact, not_believed, say_text
from aghbus.protocol.adapters.common import error, receipt_ends, warning
from aghbus.protocol.adapters.model import NOT_DELIVERED, BridgeContext, BridgedEnvelope, Delivered, Finding
from aghbus.protocol.adapters.sacp.schema import STATE_OF, STATUS_OF, response_faults
from aghbus.protocol.adapters.strict_json import check_value
from aghbus.protocol.bodies import Capability, Receipt, Say, Trace

_NAME: Final = "sacp"


def handed_text(arrival: BridgedEnvelope) -> Delivered:
    """The text of a say, whole where the body holds it cut; a capability as compact JSON."""
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
    return Delivered(message=body.text, findings=not_believed(faults), native=True)


def handed_response(arrival: BridgedEnvelope, context: BridgeContext) -> Delivered:
    """A trace that ends a work or asks, or a receipt that ends one; nothing for progress and for other receipts."""
    body = arrival.envelope.body
    if isinstance(body, Receipt):
        ended = receipt_ends(body, arrival.work, context)
        return Delivered(message=_from_receipt(body), native=True) if ended else NOT_DELIVERED
    if not isinstance(body, Trace) or body.state not in STATUS_OF:
        return NOT_DELIVERED
    carried, faults = carried_message(_NAME, arrival)
    if carried is not None:
        faults = response_faults(carried) or _state_faults(carried, body.state)
        if not faults:
            return Delivered(message=carried)
    message, changed = _from_trace(body)
    return Delivered(message=message, findings=not_believed(faults) + changed, native=True)


def _text_faults(carried: Any, text: str) -> tuple[Finding, ...]:
    if not isinstance(carried, str):
        return (error("", "type", "must be a string, as this format has it for a say"),)
    if say_text(carried, None) != text:
        return (error("", "disagrees", "is not the text of the envelope"),)
    return ()


def _state_faults(carried: dict[str, Any], state: str) -> tuple[Finding, ...]:
    if STATE_OF[carried["status"]] == state:
        return ()
    return (error("/status", "disagrees", f"does not mean the envelope's state {state}"),)


def _from_trace(body: Trace) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """A native trace: no thought is invented, a result that is no object becomes the member `result` of one."""
    result = None if body.result is None else msgspec.json.decode(body.result)
    changed: tuple[Finding, ...] = ()
    if check_value(result):
        changed = (warning("/data/result", "as_text", "the result holds what not every reader can: it is JSON text"),)
        result = compact(result)
    if not isinstance(result, dict):
        result = {} if result is None else {"result": result}
    return _response(STATUS_OF[body.state], result, body.message or ""), changed


def _from_receipt(body: Receipt) -> dict[str, Any]:
    data = {"receipt": body.status}
    if body.reason_code is not None:
        data["reason_code"] = body.reason_code
    return _response("failure", data, body.detail or "")


def _response(status: str, data: dict[str, Any], message: str) -> dict[str, Any]:
    return {"thought": "", "status": status, "data": data, "message": message}
