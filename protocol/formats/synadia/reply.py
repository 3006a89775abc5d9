"""What their caller gets for a work of ours: texts, attachments, and how it ended."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from aghbus.protocol.base.text import escape, is_blank

MAX_DESCRIPTION: Final = 200
"""Characters of an error's description: their libraries cut longer ones."""
UNANSWERED: Final = 408
"""The code for a question that the caller did not answer in time."""
UNAVAILABLE: Final = 503
"""The code while the bridge stops, or the work cannot be opened now."""

_FAILED: Final = 500
_CANCELED: Final = 410
_CODES: Final = {
    "busy": 503,
    "expired": 504,
    "not_found": 404,
    "not_target": 403,
    "verification_failed": 403,
    "unsupported_kind": 422,
    "unsupported_profile": 422,
    "malformed": 422,
}
"""By the reason of a receipt; others are 500."""


class Reply(msgspec.Struct, frozen=True):
    """The end of a prompt: a text, the result as a JSON file, and unless the work was completed a code and its description."""

    text: str
    result: bytes | None = None
    code: int = 0
    description: str = ""


def reply(
    work_id: str, state: str, message: str | None, result: Any, reason: str | None = None, detail: str | None = None
) -> Reply:
    """The reply for an ended work; `reason` and `detail` are those of the receipt that ended it, if one did."""
    text = _text(message, result)
    kept = None if result is None else msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"
    if state == "completed":
        return Reply(text, kept)
    code = _CANCELED if state == "canceled" else _CODES.get(reason or "", _FAILED)
    why = detail or message or ""
    where, line = f" [work {work_id}]", _one_line(why)
    said = f"{state}{f' ({reason})' if reason else ''}{f': {line}' if line else ''}"
    description = shorten_ascii(said, MAX_DESCRIPTION - len(where)) + where
    return Reply(why if line != why or not description.startswith(said) else "", kept, code, description)


def shorten_ascii(text: str, limit: int) -> str:
    """At most `limit` ASCII characters: descriptions travel in a header."""
    plain = text.encode("ascii", "backslashreplace").decode()
    return plain if len(plain) <= limit else plain[: limit - 3] + "..."


def _text(message: str | None, result: Any) -> str:
    """What a person reads: the output of a command, the message, or else the result."""
    found = result.get("stdout") if isinstance(result, Mapping) else None
    if isinstance(found, str) and not is_blank(found):
        return found
    if message is not None and not is_blank(message):
        return message
    if result is None:
        return ""
    inner = result.get("output", result) if isinstance(result, Mapping) else result
    return msgspec.json.format(msgspec.json.encode(inner), indent=2).decode()


def progress(text: str) -> str:
    """A report as a chunk: one or more whole lines."""
    return text if text.endswith("\n") else text + "\n"


def pieces(text: str, limit: int) -> Iterator[str]:
    """`text` in pieces, each of which takes at most `limit` bytes as JSON; none for an empty text."""
    if len(text) <= 1 or len(json.dumps(text)) <= limit:
        if text:
            yield text
        return
    middle = len(text) // 2
    yield from pieces(text[:middle], limit)
    yield from pieces(text[middle:], limit)


def with_files(text: str, files: Mapping[str, str]) -> str:
    """An answer or a prompt with the files that belong to it: the URI of each by its name."""
    return "\n".join([text, *(f"[{name}: {uri}]" for name, uri in files.items())]) if files else text


def _one_line(text: str) -> str:
    return escape(" | ".join(line.strip() for line in text.splitlines() if line.strip()))
