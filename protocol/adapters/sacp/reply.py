"""Delivers envelopes to an agent of SACP: text as a string, final traces and questions as a response object."""

from typing import Any, Final

from aghbus.protocol.adapters.attachments import carried_message, carried_warning, compact, say_text
from aghbus.protocol.adapters.common import error, receipt_ends, warning
from aghbus.protocol.adapters.model import NOT_DELIVERED, BridgeContext, BridgedEnvelope, Delivered, Finding
from aghbus.protocol.adapters.sacp.schema import STATE_OF, STATUS_OF, response_faults
from aghbus.protocol.adapters.strict_json import check_value
from aghbus.protocol.base.decoding import decode_json
from aghbus.protocol.bodies import Capability, Receipt, Say, Trace

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


def deliver_response(arrival: BridgedEnvelope, context: BridgeContext) -> Delivered:
    """The response for a final trace, a question, or a receipt that ends a work; nothing for others."""
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
    return Delivered(message=message, findings=carried_warning(faults) + changed, native=True)


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


def _from_trace(body: Trace) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """The response for a native trace: with an empty thought; a result that is not an object is wrapped in `result`."""
    result = None if body.result is None else decode_json(body.result)
    changed: tuple[Finding, ...] = ()
    if check_value(result):
        changed = (warning("/data/result", "as_text", "is sent as JSON text: it exceeds the limits of strict JSON"),)
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
