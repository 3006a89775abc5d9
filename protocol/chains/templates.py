"""Templates of a node's input: `{{node_A.data.extracted_names}}` (seed 004, section 4.2).

    reference = "{{" ( "null" | path [ "+" digits ] [ "|" "default" ":" value ] ) "}}"
    value     = a JSON value, or a string in single quotes without quotes, backslashes or control characters

A text that consists of one reference becomes the value with its type. Inside other text a string is inserted unchanged, any
other value as compact JSON. Inserted text is not expanded again. There is no escape: `{{` always begins a reference. Keys of
objects are not expanded. The default replaces the whole sum when the path has no value or null.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from aghbus.protocol.agh.limits import MAX_ENVELOPE_BYTES
from aghbus.protocol.base.text import is_blank
from aghbus.protocol.chains.errors import ChainError
from aghbus.protocol.chains.paths import MISSING, PATH, Missing, Path, Scope, read_path
from aghbus.protocol.formats.attachments import NO_TEXT
from aghbus.protocol.formats.strict_json import read_json

_BEGIN: Final = "{{"
_SUM: Final = re.compile(rf"\{{\{{[ \t]*(?P<path>{PATH.pattern})[ \t]*(?:\+[ \t]*(?P<plus>[0-9]{{1,9}})[ \t]*)?")
_DEFAULT: Final = re.compile(r"\|[ \t]*default[ \t]*:[ \t]*")
_QUOTED: Final = re.compile(r"'([^'\\\x00-\x1f]*)'")
_NULL: Final = re.compile(r"\{\{[ \t]*null[ \t]*\}\}")
_END: Final = re.compile(r"[ \t]*\}\}")
_JSON: Final = json.JSONDecoder()


class TemplateReference(msgspec.Struct, frozen=True):
    """One reference: the value of `path`, plus `plus`; `default` instead if the path has no value or null."""

    path: Path
    plus: int | None = None
    default: Any = MISSING

    @property
    def is_optional(self) -> bool:
        """Whether it has a default."""
        return not isinstance(self.default, Missing)

    def find(self, scope: Scope) -> Any:
        """Its value. Raises ChainError: `missing`, or `number` for a sum with another value than a number."""
        found = self.path.find(scope)
        if (found is MISSING or found is None) and self.is_optional:
            return self.default
        if found is MISSING:
            raise ChainError("missing", f"{{{{{self.path.text}}}}} has no value")
        if self.plus is None:
            return found
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise ChainError("number", f"{{{{{self.path.text} + {self.plus}}}}}: the value is not a number")
        return found + self.plus


_ALWAYS_NULL: Final = TemplateReference(Path("null", "run", ("null",)), default=None)
"""`{{null}}`, for files whose syntax has no null: `run` has no such member."""


def references(template: Any) -> Iterator[TemplateReference]:
    """All references of a template, in order. Raises ChainError for an invalid reference."""
    if isinstance(template, str):
        yield from (part for part in _parts(template) if isinstance(part, TemplateReference))
    elif isinstance(template, list):
        for item in template:
            yield from references(item)
    elif isinstance(template, dict):
        for item in template.values():
            yield from references(item)


def render(template: Any, scope: Scope) -> Any:
    """`template` with its references replaced.

    Raises ChainError for a reference without a value (`missing`), and when the inserted text exceeds an envelope (`too_large`).
    """
    return _Rendering(scope).value(template)


def input_text(value: Any) -> str:
    """A rendered input as the text of a say: a string unchanged, any other value as compact JSON; blank becomes `(no text)`.

    Raises ChainError (`not_json`) for a number without a form in JSON.
    """
    text = _text(value)
    return NO_TEXT if is_blank(text) else text


class _Rendering:
    """One rendering; `_budget` limits the inserted characters, so that a small file cannot produce gigabytes."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._budget = MAX_ENVELOPE_BYTES

    def value(self, template: Any) -> Any:
        if isinstance(template, str):
            parts = _parts(template)
            if len(parts) == 1 and isinstance(parts[0], TemplateReference):
                found = parts[0].find(self._scope)
                self._consume(_text(found))
                return found
            return "".join(part if isinstance(part, str) else self._inserted(part) for part in parts)
        if isinstance(template, list):
            return [self.value(item) for item in template]
        if isinstance(template, dict):
            return {key: self.value(item) for key, item in template.items()}
        return template

    def _inserted(self, reference: TemplateReference) -> str:
        return self._consume(_text(reference.find(self._scope)))

    def _consume(self, text: str) -> str:
        self._budget -= len(text)
        if self._budget < 0:
            raise ChainError("too_large", f"the inserted text exceeds {MAX_ENVELOPE_BYTES} characters")
        return text


def _parts(text: str) -> tuple[str | TemplateReference, ...]:
    """Plain text and references, in order."""
    parts: list[str | TemplateReference] = []
    at = 0
    while (begin := text.find(_BEGIN, at)) >= 0:
        if begin > at:
            parts.append(text[at:begin])
        reference, at = _reference(text, begin)
        parts.append(reference)
    if at < len(text):
        parts.append(text[at:])
    return tuple(parts)


def _reference(text: str, begin: int) -> tuple[TemplateReference, int]:
    """The reference at `begin`, and where the text goes on."""
    if null := _NULL.match(text, begin):
        return _ALWAYS_NULL, null.end()
    match = _SUM.match(text, begin)
    if match is None:
        raise _invalid(text, begin)
    default: Any = MISSING
    at = match.end()
    if filtered := _DEFAULT.match(text, at):
        default, at = _value(text, begin, filtered.end())
    end = _END.match(text, at)
    if end is None:
        raise _invalid(text, begin)
    plus = None if match["plus"] is None else int(match["plus"])
    return TemplateReference(read_path(match["path"]), plus, default), end.end()


def _value(text: str, begin: int, at: int) -> tuple[Any, int]:
    """The default at `at` of the reference at `begin`, and its end."""
    if quoted := _QUOTED.match(text, at):
        return quoted[1], quoted.end()
    try:
        _, end = _JSON.raw_decode(text, at)
    except (ValueError, RecursionError):
        raise _invalid(text, begin) from None
    value, faults = read_json(text[at:end].encode("utf-8", "surrogatepass"))
    if faults:
        raise ChainError("template", f"the default {text[at : min(end, at + 40)]!r} {faults[0].message}")
    return value, end


def _invalid(text: str, begin: int) -> ChainError:
    shown = text[begin : begin + 40]
    return ChainError("template", f"{shown!r} is not a reference such as {{{{node_A.data.name}}}}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _compact(value)


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise ChainError("not_json", f"a value is not representable as JSON: {error}") from None
