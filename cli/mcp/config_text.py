"""Changes of a host's configuration file: its text is read, edited as a dictionary, and written again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from aghbus.protocol.base.annotations import Any

Edit = Callable[[dict[str, Any]], None]
"""Changes a document in place. Raises Broken when the document has another structure than the host's."""

_FIRST_INDENT = re.compile(r"\n([ \t]*)\S")


class Broken(ValueError):
    """The text is not of its format, or has another structure than the host's."""


def edit_json(text: str, edit: Edit) -> str:
    """The text of a plain JSON object after `edit`, with the same order and indentation. Raises Broken, also for comments."""
    try:
        document = json.loads(text if text.strip() else "{}")
    except (ValueError, RecursionError) as error:
        raise Broken(f"it is not plain JSON, without comments: {error}") from None
    if not isinstance(document, dict):
        raise Broken("the document is not an object")
    before = json.dumps(document)
    first = _FIRST_INDENT.search(text)
    indent = first[1] if first else None if document else "  "
    edit(document)
    if json.dumps(document) == before:
        return text
    end = text[len(text.rstrip()) :] if text else "\n"
    return json.dumps(document, indent=indent, ensure_ascii=text.isascii()) + end


def edit_toml(text: str, edit: Edit) -> str:
    """The text of a TOML document after `edit`; all else stays, also comments. Raises Broken."""
    import tomllib  # slow to load, as tomlkit is

    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        meant = tomllib.loads(text)
        edit(meant)
        if meant == tomllib.loads(text):
            return text
        document = tomlkit.parse(text)
        edit(document)
        changed = tomlkit.dumps(document)
        same = tomllib.loads(changed) == meant
    except Broken:
        raise
    except (ValueError, RecursionError, TOMLKitError) as error:
        raise Broken(str(error)) from None
    if not same:
        raise Broken("the table is written in a form that cannot be changed automatically")
    return changed


def member(document: Any, key: str) -> Any:
    """The value of a key, None without it. Raises Broken when `document` has no keys."""
    if not isinstance(document, dict):
        raise Broken(f"what should have {key!r} is not an object")
    return document.get(key)
