"""The canonical capability document and its digest (spec section 3)."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aghbus.protocol.agh.errors import Malformed, VerificationFailed
from aghbus.protocol.agh.limits import MAX_LIST_ITEMS
from aghbus.protocol.base.text import is_blank, trim

REQUIRED_TEXTS: Final = ("id", "summary", "outcome")
LISTS: Final = ("context_needed", "artifacts_expected", "execution_outline", "constraints", "examples")
FIELDS: Final = (*REQUIRED_TEXTS, "version", *LISTS, "requirements")  # the order of the document

# As Go's encoding/json: short escapes, HTML-sensitive characters and U+2028/U+2029 are escaped, the rest is raw UTF-8.
_ESCAPES: Final = {
    **{chr(code): f"\\u{code:04x}" for code in range(0x20)},
    '"': '\\"',
    "\\": "\\\\",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\b": "\\b",
    "\f": "\\f",
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
_NEEDS_ESCAPE: Final = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029]')


def normalize_capability(record: Mapping[str, Any]) -> dict[str, str | list[str]]:
    """The fields that the digest covers, trimmed and in document order, without an empty `version` or empty lists.

    `record` is a capability record as on the wire; other keys are ignored. Raises Malformed for a wrong type or a blank
    required text, VerificationFailed for blank or repeated `requirements` (seed 002, capability body).
    """
    document: dict[str, str | list[str]] = {}
    for field in REQUIRED_TEXTS:
        document[field] = text = trim(_text(record, field))
        if not text:
            raise Malformed("must be a non-blank string", f"capability.{field}")
    if record.get("version") is not None and (version := trim(_text(record, "version"))):
        document["version"] = version
    for field in LISTS:
        if entries := [trim(entry) for entry in _texts(record, field) if not is_blank(entry)]:
            document[field] = entries
    if requirements := _requirements(record):
        document["requirements"] = requirements
    return document


def canonical_bytes(record: Mapping[str, Any]) -> bytes:
    """The exact bytes that are hashed. Errors as `normalize_capability`."""
    members = (f'"{field}":{_encode(value)}' for field, value in normalize_capability(record).items())
    return ("{" + ",".join(members) + "}").encode()


def capability_digest(record: Mapping[str, Any]) -> str:
    """`"sha256:"` and 64 hex digits over the canonical document. Errors as `normalize_capability`."""
    return "sha256:" + hashlib.sha256(canonical_bytes(record)).hexdigest()


def _text(record: Mapping[str, Any], field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str):
        raise Malformed("must be a string", f"capability.{field}")
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise Malformed("contains a lone surrogate", f"capability.{field}")
    return value


def _texts(record: Mapping[str, Any], field: str) -> Sequence[str]:
    value = record.get(field)
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
        raise Malformed("must be an array of strings", f"capability.{field}")
    if len(value) > MAX_LIST_ITEMS:
        raise Malformed(f"has more than {MAX_LIST_ITEMS} entries", f"capability.{field}")
    for entry in value:
        if not entry.isascii() and any("\ud800" <= char <= "\udfff" for char in entry):
            raise Malformed("contains a lone surrogate", f"capability.{field}")
    return value


def _requirements(record: Mapping[str, Any]) -> list[str]:
    entries = [trim(entry) for entry in _texts(record, "requirements")]
    if not all(entries):
        raise VerificationFailed("has a blank entry", "capability.requirements")
    if len(set(entries)) != len(entries):
        raise VerificationFailed("has an entry twice", "capability.requirements")
    return sorted(entries)


def _encode(value: str | list[str]) -> str:
    if isinstance(value, list):
        return "[" + ",".join(map(_encode, value)) + "]"
    return '"' + _NEEDS_ESCAPE.sub(lambda match: _ESCAPES[match.group()], value) + '"'
