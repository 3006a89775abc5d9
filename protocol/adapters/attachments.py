"""How a foreign message rides in an envelope: whole in `ext`, cut in the text and the result that everybody reads.

adapters.md, Common rules: Lossless, Text of a say.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aghbus.protocol.adapters.derived_ids import canonical
from aghbus.protocol.adapters.model import BridgedEnvelope, Finding
from aghbus.protocol.adapters.strict_json import check_value, read_json
from aghbus.protocol.text import is_blank

MAX_MESSAGE_BYTES: Final = 4_194_304  # ours, of one foreign message: reading it keeps a daemon busy for half a second
CUT_BYTES: Final = 65_536  # adapters.md, Lossless: of `text` and `result`, where `ext` carries the whole
NO_TEXT: Final = "(no text)"
_MARK: Final = "…"

_compact: Final = msgspec.json.Encoder().encode


def extension(name: str, message: Any, findings: tuple[Finding, ...] = ()) -> dict[str, Any]:
    """The `ext` that carries a message and its warnings."""
    ext: dict[str, Any] = {f"{name}.message": message}
    warnings = [msgspec.to_builtins(finding) for finding in findings if finding.severity == "warning"]
    if warnings:
        ext[f"{name}.findings"] = warnings
    return ext


def carried_message(name: str, arrival: BridgedEnvelope) -> tuple[Any | None, tuple[Finding, ...]]:
    """The message that an envelope carries, and why it cannot be taken; `(None, ())` when it carries none."""
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
    """Where a message lies that is too large to ride along: its artifact's URI, SHA-256 (64 hex digits) and size in bytes."""

    uri: str
    sha256: str
    size: int


def by_reference(name: str, ext: Mapping[str, Any], reference: Reference) -> dict[str, Any]:
    """`ext` with a reference in place of the message that it carries (adapters.md, Too large)."""
    made = {key: value for key, value in ext.items() if key != f"{name}.message"}
    made[f"{name}.message_ref"] = msgspec.to_builtins(reference)
    return made


def reference_in(name: str, ext: Mapping[str, Any]) -> Reference | Finding | None:
    """The reference that an envelope carries in place of a message; why it cannot be followed; None when it carries none."""
    value = ext.get(f"{name}.message_ref")
    if value is None:
        return None
    try:
        found = msgspec.convert(value, Reference)
    except msgspec.ValidationError as error:
        return _not_fetched(f"is no reference: {error}")
    if not 0 < found.size <= MAX_MESSAGE_BYTES:
        return _not_fetched(f"names {found.size} bytes, of at most {MAX_MESSAGE_BYTES}")
    return found


def fetched(reference: Reference, content: bytes) -> tuple[Any | None, tuple[Finding, ...]]:
    """The message in `content`, which `reference` led to; `(None, why)` when it is not what the reference says."""
    if len(content) != reference.size or hashlib.sha256(content).hexdigest() != reference.sha256:
        return None, (_not_fetched("led to other content than it says"),)
    value, faults = read_json(content)
    return (None, not_believed(faults)) if faults else (value, ())


def not_fetched(why: str) -> Finding:
    """The warning that the message could not be had: the envelope counts as native."""
    return _not_fetched(f"could not be followed: {why}")


def _not_fetched(why: str) -> Finding:
    return Finding("", "message_ref", "warning", f"the reference to the carried message {why}")


def not_believed(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The warning that stands for a carried message which did not hold: the envelope counts as native then."""
    if not findings:
        return ()
    first = findings[0]
    return (Finding(first.path, "carried_message", "warning", f"the carried message is not used: {first.message}"),)


def say_text(content: Any, summary: str | None) -> str:
    """The text of a say: a string as it is, a list of strings by line, else compact JSON; blank: `summary`, `(no text)`."""
    for candidate in (_as_text(content), summary):
        if candidate is not None and not is_blank(candidate):
            return cut_text(candidate)
    return NO_TEXT


def compact(value: Any) -> str:
    """Compact JSON, keys in their order."""
    return _compact(value).decode()


def cut_text(text: str) -> str:
    """At most CUT_BYTES of UTF-8, ending in `…` when something was cut."""
    encoded = text.encode()
    if len(encoded) <= CUT_BYTES:
        return text
    return encoded[: CUT_BYTES - len(_MARK.encode())].decode(errors="ignore") + _MARK


def cut_result(result: dict[str, Any]) -> dict[str, Any]:
    """`result` within CUT_BYTES of JSON: its largest members become cut text, and `truncated` names them."""
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
    """The text of `value` whose JSON takes `room` bytes more than that of an empty string, at most."""
    text = value if isinstance(value, str) else compact(value)
    text = text.encode()[: max(0, room)].decode(errors="ignore")
    while text and len(_compact(text)) - 2 + len(_MARK.encode()) > room:
        text = text[: len(text) * 3 // 4]
    return text + _MARK if text else ""


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
