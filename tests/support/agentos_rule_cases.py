"""Messages of AgentOS for the tests of its rules."""

from typing import Any

from tests.support.agentos_peers import (
    ERROR,
    QUERY,
    RESPONSE,
    varied,
)

V4 = "123e4567-e89b-42d3-a456-426614174000"
STAMP = "2026-01-21T12:53:20Z"  # NOW
ASKED = varied(QUERY, id=V4, timestamp=STAMP)
ANSWERED = varied(RESPONSE, id=V4, timestamp=STAMP)
FAILED = varied(ERROR, id=V4, timestamp=STAMP)


def changed(message: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with the member at `path` (keys joined by dots) replaced; `...` removes it."""
    made = varied(message)
    *outer, last = path.split(".")
    inner = made
    for key in outer:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return made
