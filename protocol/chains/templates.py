"""Templates of a node's input: `{{node_A.data.extracted_names}}` (seed 004, section 4.2).

A text that consists of one reference becomes the value with its type. Inside other text a string is inserted unchanged, any
other value as compact JSON. Inserted text is not expanded again. There is no escape: `{{` always begins a reference. Keys of
objects are not expanded.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from aghbus.protocol.adapters.attachments import NO_TEXT
from aghbus.protocol.chains.errors import ChainError
from aghbus.protocol.chains.paths import MISSING, PATH, Path, Scope, read_path
from aghbus.protocol.limits import MAX_ENVELOPE_BYTES
from aghbus.protocol.text import is_blank

_REFERENCE: Final = re.compile(rf"\{{\{{[ \t]*({PATH.pattern})[ \t]*\}}\}}")
_BEGIN: Final = "{{"


def references(template: Any) -> Iterator[Path]:
    """All references of a template, in order. Raises ChainError for an invalid reference."""
    if isinstance(template, str):
        yield from (part for part in _parts(template) if isinstance(part, Path))
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
    text = value if isinstance(value, str) else _compact(value)
    return NO_TEXT if is_blank(text) else text


class _Rendering:
    """One rendering; `_budget` limits the inserted characters, so that a small file cannot produce gigabytes."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._budget = MAX_ENVELOPE_BYTES

    def value(self, template: Any) -> Any:
        if isinstance(template, str):
            parts = _parts(template)
            if len(parts) == 1 and isinstance(parts[0], Path):
                found = self._found(parts[0])
                self._consume(found if isinstance(found, str) else _compact(found))
                return found
            return "".join(part if isinstance(part, str) else self._text(part) for part in parts)
        if isinstance(template, list):
            return [self.value(item) for item in template]
        if isinstance(template, dict):
            return {key: self.value(item) for key, item in template.items()}
        return template

    def _text(self, path: Path) -> str:
        found = self._found(path)
        return self._consume(found if isinstance(found, str) else _compact(found))

    def _found(self, path: Path) -> Any:
        found = path.find(self._scope)
        if found is MISSING:
            raise ChainError("missing", f"{{{{{path.text}}}}} has no value")
        return found

    def _consume(self, text: str) -> str:
        self._budget -= len(text)
        if self._budget < 0:
            raise ChainError("too_large", f"the inserted text exceeds {MAX_ENVELOPE_BYTES} characters")
        return text


def _parts(text: str) -> tuple[str | Path, ...]:
    """Plain text and references, in order."""
    parts: list[str | Path] = []
    at = 0
    while (begin := text.find(_BEGIN, at)) >= 0:
        match = _REFERENCE.match(text, begin)
        if match is None:
            shown = text[begin : begin + 40]
            raise ChainError("template", f"{shown!r} is not a reference such as {{{{node_A.data.name}}}}")
        if begin > at:
            parts.append(text[at:begin])
        parts.append(read_path(match[1]))
        at = match.end()
    if at < len(text):
        parts.append(text[at:])
    return tuple(parts)


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise ChainError("not_json", f"a value is not representable as JSON: {error}") from None
