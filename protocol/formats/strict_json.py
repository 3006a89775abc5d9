"""Strict JSON: whatever two parsers could interpret differently is an error (adapters.md, Common rules)."""

import json
import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from aghbus.protocol.agh.decoding import count_excess, is_deeper
from aghbus.protocol.formats.model import Finding

MAX_DEPTH: Final = 64  # adapters.md, Findings
MAX_INTEGER: Final = 2**53 - 1  # adapters.md, Findings: larger integers are not exact as doubles
_DIGITS: Final = 16  # of MAX_INTEGER; longer texts are out of range without conversion
_MAX_FINDINGS: Final = 100  # per message

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _Object(dict[str, Any]):
    """A JSON object with its duplicate keys."""

    duplicates: tuple[str, ...] = ()


class _UnsafeNumber:
    """A number that not every parser represents exactly."""

    def __init__(self, rule: str, text: str) -> None:
        self.rule = rule
        self.text = text if len(text) <= 40 else text[:40] + "…"


def pointer(*keys: str | int) -> str:
    """A JSON Pointer (RFC 6901) to the member at `keys`."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def read_json(text: bytes) -> tuple[Any, tuple[Finding, ...]]:
    """The value of `text` (UTF-8 JSON) and the errors; with errors the value is None."""
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        return None, (_error("", "not_utf8", f"is not UTF-8 at byte {error.start}"),)
    if is_deeper(text, MAX_DEPTH):
        return None, (_error("", "too_deep", f"is nested deeper than {MAX_DEPTH}"),)
    if excess := count_excess(text):
        return None, (_error("", "too_many", excess),)
    try:
        value = json.loads(
            decoded, object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
        )
    except (ValueError, RecursionError) as error:
        return None, (_error("", "not_json", f"is not JSON: {error}"),)
    findings = tuple(islice(_faults(value, ()), _MAX_FINDINGS))
    return (None, findings) if findings else (_to_plain(value), ())


def check_value(value: Any) -> tuple[Finding, ...]:
    """The same checks for a decoded value; duplicate keys are not detected."""
    return tuple(islice(_faults(value, ()), _MAX_FINDINGS))


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        made.duplicates = tuple(dict.fromkeys(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return made


def _integer(text: str) -> int | _UnsafeNumber:
    if len(text.lstrip("-")) > _DIGITS or abs(int(text)) > MAX_INTEGER:
        return _UnsafeNumber("integer_range", text)
    return int(text)


def _float(text: str) -> float | _UnsafeNumber:
    value = float(text)
    return value if math.isfinite(value) else _UnsafeNumber("number_range", text)


def _constant(text: str) -> _UnsafeNumber:
    return _UnsafeNumber("not_finite", text)


def _faults(value: Any, path: tuple[str | int, ...]) -> Iterator[Finding]:
    match value:
        case _UnsafeNumber():
            yield _error(
                pointer(*path), value.rule, f"the number {value.text} cannot be represented exactly by every parser"
            )
        case bool() | None:
            return
        case int() if abs(value) > MAX_INTEGER:
            yield _error(pointer(*path), "integer_range", "is an integer beyond 2^53-1")
        case float() if not math.isfinite(value):
            yield _error(pointer(*path), "not_finite", "is not a finite number")
        case str() if not value.isascii() and _SURROGATE.search(value):
            yield _error(pointer(*path), "lone_surrogate", "contains a lone surrogate")
        case dict() | list():
            yield from _inner_faults(value, path)


def _inner_faults(value: dict[str, Any] | list[Any], path: tuple[str | int, ...]) -> Iterator[Finding]:
    if len(path) >= MAX_DEPTH:
        yield _error("", "too_deep", f"is nested deeper than {MAX_DEPTH}")
        return
    if isinstance(value, _Object):
        for key in value.duplicates:
            yield _error(pointer(*path, _escape_surrogates(key)), "duplicate_key", "appears twice")
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(item, (*path, index))
        return
    for key, item in value.items():
        if not key.isascii() and _SURROGATE.search(key):
            yield _error(pointer(*path), "lone_surrogate", "has a key with a lone surrogate")
        yield from _faults(item, (*path, _escape_surrogates(key)))


def _escape_surrogates(key: str) -> str:
    return _SURROGATE.sub("\ufffd", key)


def _to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    return [_to_plain(item) for item in value] if isinstance(value, list) else value


def _error(path: str, rule: str, message: str) -> Finding:
    return Finding(path, rule, "error", message)
