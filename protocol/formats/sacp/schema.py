"""The response object of SACP: its schema, the fallback, and the meaning of its status on the bus.

Seed "Standard Agent Communication Protocol", sections 2.1 (schema) and 7.2 (fallback schema).
"""

from typing import Any, Final

from aghbus.protocol.agh.lifecycle import State
from aghbus.protocol.formats.common import error
from aghbus.protocol.formats.model import Finding
from aghbus.protocol.formats.strict_json import pointer

# adapters.md, sacp: status -> state of the trace.
STATE_OF: Final[dict[str, State]] = {
    "success": "completed",
    "completed": "completed",
    "failure": "failed",
    "clarification_needed": "needs_input",
}
# The inverse, for native envelopes. A trace `working` has no equivalent.
STATUS_OF: Final[dict[str, str]] = {
    "completed": "success",
    "failed": "failure",
    "canceled": "failure",
    "needs_input": "clarification_needed",
}

REQUIRED: Final = ("thought", "status", "data", "message")  # section 2.1, `required`
_STRINGS: Final = ("thought", "status", "message", "next_step_hint")  # section 2.1, `type: string`

_FALLBACK_THOUGHT: Final = "System Note: LLM failed to provide structured JSON output."  # section 7.2
_FALLBACK_MESSAGE: Final = "The LLM returned an invalid response format."  # section 7.2


def response_faults(value: Any) -> tuple[Finding, ...]:
    """The violations of the schema of section 2.1; empty when `value` is a response. Unknown keys are allowed."""
    if not isinstance(value, dict):
        return (error("", "type", "must be an object"),)
    faults = [error(pointer(name), "required", "is required") for name in REQUIRED if name not in value]
    faults += [
        error(pointer(name), "type", "must be a string")
        for name in _STRINGS
        if name in value and not isinstance(value[name], str)
    ]
    if "data" in value and not isinstance(value["data"], dict):
        faults.append(error("/data", "type", "must be an object"))
    status = value.get("status")
    if isinstance(status, str) and status not in STATE_OF:
        faults.append(error("/status", "enum", f"must be one of {', '.join(STATE_OF)}"))
    return tuple(faults)


def fallback(raw: str) -> dict[str, Any]:
    """The response for a text without one: status failure, with the text in `data.raw_output` (section 7.2)."""
    return {
        "thought": _FALLBACK_THOUGHT,
        "status": "failure",
        "data": {"raw_output": raw},
        "message": _FALLBACK_MESSAGE,
    }
