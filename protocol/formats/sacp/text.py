"""Extracts the response object from the text of a language model (seed section 7.1, Sanitization).

Three stages, in this order: the whole text, each fenced block, and the text from the first `{` to the last `}`. The first
candidate that is strict JSON and matches the schema is the response. Nothing is repaired. Candidates of one stage do not
overlap and no expression backtracks, so the time is linear in the text.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from aghbus.protocol.formats.model import Finding
from aghbus.protocol.formats.sacp.schema import response_faults
from aghbus.protocol.formats.strict_json import read_json

Stage = Literal["whole", "fence", "braces", "fallback"]

_FENCE_LINE: Final = re.compile(r"[ \t]*+(`{3,}+|~{3,}+)([^\n]*+)")
_TICKS: Final = re.compile(r"`{3,}+")
_INFO: Final = re.compile(r"[ \t]*+([A-Za-z0-9_+-]*+)")
_MIN_LENGTH: Final = len('{"thought":"","status":"success","data":{},"message":""}')  # the shortest valid response
_JSON_INFO: Final = frozenset({"", "json"})  # section 7.1 names `json`; blocks without a language are accepted too


class Extracted(msgspec.Struct, frozen=True):
    """The response in a text and the stage that found it; `response` is None with stage `fallback`.

    `faults` are then those of the first candidate that is a JSON object, else those of the whole text.
    """

    response: dict[str, Any] | None
    stage: Stage
    faults: tuple[Finding, ...] = ()


def extract(text: str) -> Extracted:
    """Extract the response from any text."""
    reason: tuple[Finding, ...] = ()
    found_object = False
    for stage, candidate in _candidates(text):
        value, faults = read_json(candidate.encode())
        if not faults:
            faults = response_faults(value)
            if not faults:
                return Extracted(value, stage)
        if not reason or (isinstance(value, dict) and not found_object):
            reason = faults
        found_object = found_object or isinstance(value, dict)
    return Extracted(None, "fallback", reason)


def _candidates(text: str) -> Iterator[tuple[Stage, str]]:
    yield "whole", text.strip()
    for start, end in sorted({*_line_blocks(text), *_inline_blocks(text)}):
        block = text[start:end].strip()
        if block.startswith("{") and len(block) >= _MIN_LENGTH:
            yield "fence", block
    first, last = text.find("{"), text.rfind("}")
    if 0 <= first < last:
        yield "braces", text[first : last + 1]


def _line_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Fenced blocks as in Markdown: closed by a line of at least as many fence characters, else by the end of the text.

    A fence inside a JSON string is never alone on its line, since line breaks in strings are escaped.
    """
    fence, wanted, start, at = "", False, 0, 0
    for line in text.split("\n"):
        after = at + len(line) + 1
        match = _FENCE_LINE.match(line)
        if match is not None:
            if not fence and "`" not in match[2]:
                fence, wanted, start = match[1], _is_json(match[2]), after
            elif fence and match[1].startswith(fence) and not match[2].strip():
                if wanted:
                    yield start, at
                fence = ""
        at = after
    if fence and wanted:
        yield start, len(text)


def _inline_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Blocks that begin or end within a line, as some models write: each run of backticks opens or closes one."""
    opening: re.Match[str] | None = None
    for run in _TICKS.finditer(text):
        if opening is None:
            opening = run
        elif len(run[0]) >= len(opening[0]):
            info = _INFO.match(text, opening.end())
            if info is not None and info[1].lower() in _JSON_INFO:
                yield info.end(), run.start()
            opening = None


def _is_json(info: str) -> bool:
    """Whether the info string of a fence is empty or names JSON."""
    language = _INFO.match(info)
    return language is not None and language[1].lower() in _JSON_INFO
