"""Rows of the bridge's message log."""

from aghbus.protocol.formats.model import Conversion

ASKED_MS = 1_780_000_000_250


def record(message_id: str, direction: str, *, answers: str | None = None, waits: int | None = None) -> Conversion:
    row = {
        "messageId": message_id,
        "timestamp": "2026-05-28T20:26:40Z",
        "direction": direction,
        "fromAgent": "asker",
        "toAgent": "helper",
        "type": "query",
        "status": "success",
        "latencyMs": 0,
        "evidenceCount": 0,
        "confidenceScore": 0,
    }
    return Conversion(message=None, foreign_id=message_id, record=row, answers=answers, waits=waits)
