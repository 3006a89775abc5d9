"""Foreign messages in envelopes: complete in `ext`, truncated in the text and result that all peers read.

adapters.md, Common rules: Lossless, Text of a say.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aghbus.protocol.base.text import is_blank
from aghbus.protocol.formats.derived_ids import canonical
from aghbus.protocol.formats.model import BridgedEnvelope, Finding
from aghbus.protocol.formats.strict_json import check_value, read_json

MAX_MESSAGE_BYTES: Final = 4_194_304  # of one foreign message; parsing it takes up to half a second
CUT_BYTES: Final = 65_536  # adapters.md, Lossless: limit of `text` and `result`; `ext` has the complete message
NO_TEXT: Final = "(no text)"
_ELLIPSIS: Final = "…"

_compact: Final = msgspec.json.Encoder().encode


def extension(name: str, message: Any, findings: tuple[Finding, ...] = ()) -> dict[str, Any]:
    """The `ext` with a message and its warnings."""
    ext: dict[str, Any] = {f"{name}.message": message}
    warnings = [msgspec.to_builtins(finding) for finding in findings if finding.severity == "warning"]
    if warnings:
        ext[f"{name}.findings"] = warnings
    return ext


def carried_message(name: str, arrival: BridgedEnvelope) -> tuple[Any | None, tuple[Finding, ...]]:
    """The message in an envelope, or the findings that make it unusable; `(None, ())` when it has none."""
    if arrival.carried is not None:
        value = arrival.carried
    else:
        ext = arrival.envelope.extensions()
        if f"{name}.message" not in ext:
            return None, ()
        value = ext[f"{name}.message"]
    faults = check_value(value)
    return (None, faults) if faults else (value, ())


class Reference(msgspec.Struct, frozen=True):
    """Reference to a message in the artifact store: URI, SHA-256 (64 hex digits) and size in bytes of the artifact."""

    uri: str
    sha256: str
    size: int


def by_reference(name: str, ext: Mapping[str, Any], reference: Reference) -> dict[str, Any]:
    """`ext` with a reference instead of the message (adapters.md, Too large)."""
    made = {key: value for key, value in ext.items() if key != f"{name}.message"}
    made[f"{name}.message_ref"] = msgspec.to_builtins(reference)
    return made


def reference_in(name: str, ext: Mapping[str, Any]) -> Reference | Finding | None:
    """The reference in an envelope, the finding why it is invalid, or None when there is no reference."""
    value = ext.get(f"{name}.message_ref")
    if value is None:
        return None
    try:
        found = msgspec.convert(value, Reference)
    except msgspec.ValidationError as error:
        return _not_fetched(f"is invalid: {error}")
    if not 0 < found.size <= MAX_MESSAGE_BYTES:
        return _not_fetched(f"has a size of {found.size} bytes; the limit is {MAX_MESSAGE_BYTES}")
    return found


def fetched(reference: Reference, content: bytes) -> tuple[Any | None, tuple[Finding, ...]]:
    """The message in the fetched `content`; `(None, findings)` when it does not match the reference."""
    if len(content) != reference.size or hashlib.sha256(content).hexdigest() != reference.sha256:
        return None, (_not_fetched("does not match the content (size or SHA-256)"),)
    value, faults = read_json(content)
    return (None, carried_warning(faults)) if faults else (value, ())


def not_fetched(why: str) -> Finding:
    """The warning that a message could not be fetched: the envelope counts as native."""
    return _not_fetched(f"could not be resolved: {why}")


def _not_fetched(why: str) -> Finding:
    return Finding("", "message_ref", "warning", f"the reference to the carried message {why}")


def carried_warning(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The warning that a carried message is invalid: the envelope counts as native."""
    if not findings:
        return ()
    first = findings[0]
    return (Finding(first.path, "carried_message", "warning", f"the carried message is not used: {first.message}"),)


def say_text(content: Any, summary: str | None) -> str:
    """The text of a say: a string unchanged, a list of strings as lines, else compact JSON; if blank `summary` or `(no text)`."""
    for candidate in (_as_text(content), summary):
        if candidate is not None and not is_blank(candidate):
            return cut_text(candidate)
    return NO_TEXT


def compact(value: Any) -> str:
    """Compact JSON in the original key order."""
    return _compact(value).decode()


def cut_text(text: str) -> str:
    """`text` truncated to CUT_BYTES of UTF-8, with `…` at the end if truncated."""
    encoded = text.encode()
    if len(encoded) <= CUT_BYTES:
        return text
    return encoded[: CUT_BYTES - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS


def cut_result(result: dict[str, Any]) -> dict[str, Any]:
    """`result` limited to CUT_BYTES of JSON: its largest members become truncated text, and `truncated` lists them."""
    if len(_compact(result)) <= CUT_BYTES:
        return result
    made = dict(result)
    cut: list[str] = []
    for name in sorted(made, key=lambda key: len(_compact(made[key])), reverse=True):
        cut.append(name)
        made["truncated"] = cut
        made[name] = ""
        room = CUT_BYTES - len(_compact(made))
        made[name] = _fitting(result[name], room)
        if room >= 0:
            return made
    return {"truncated": ["*"]}


def _fitting(value: Any, room: int) -> str:
    """The text of `value`, truncated so that its JSON is at most `room` bytes longer than that of an empty string."""
    text = value if isinstance(value, str) else compact(value)
    text = text.encode()[: max(0, room)].decode(errors="ignore")
    while text and len(_compact(text)) - 2 + len(_ELLIPSIS.encode()) > room:
        text = text[: len(text) * 3 // 4]
    return text + _ELLIPSIS if text else ""


def size_of(value: Any) -> int:
    """Bytes of a value as JSON."""
    return len(canonical(value))


def _as_text(content: Any) -> str | None:
    if content is None:
        return None
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content and all(isinstance(item, str) for item in content):
        return "\n".join(content)
    return compact(content)
