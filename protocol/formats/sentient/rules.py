"""Checks of the Sentient platform's orchestration layer beyond the shape (seed 000, Message Validation)."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from aghbus.protocol.base.text import is_blank, shorten
from aghbus.protocol.formats.attachments import compact
from aghbus.protocol.formats.common import error, warning
from aghbus.protocol.formats.derived_ids import same_json
from aghbus.protocol.formats.model import Finding
from aghbus.protocol.formats.sentient.message import MAX_FINDINGS, SentientMessage, quoted
from aghbus.protocol.formats.strict_json import pointer
from aghbus.protocol.formats.time_zones import TIME_ZONES

# The number before the word "goals" in the same clause, but not a number of objectives: "decomposed 2 objectives into 10
# actionable goals".
_GOAL_COUNT: Final = re.compile(
    r"(?<![\d.,])(\d{1,9})(?!\d)(?:(?!\bobjectives?\b)[^\d.;:!?]){0,80}?\bgoals?\b", re.ASCII | re.IGNORECASE
)
_STORAGE_REF: Final = re.compile(r"(?<![A-Za-z0-9_])store_([1-9][0-9]{0,8})(?![A-Za-z0-9_])")
_SOURCE_REF: Final = re.compile(r"(?<![A-Za-z0-9_])src_[1-9][0-9]{0,8}(?![A-Za-z0-9_])")
_PROVENANCE: Final = re.compile(r"\s{0,8}\(\s{0,8}acquired\s{1,8}from\s{1,8}(src_[1-9][0-9]{0,8})\s{0,8}\)")
_NOT_RELATIVE: Final = re.compile(r"[/~]|[A-Za-z]:|[A-Za-z][A-Za-z0-9+.-]*://")

_Text = tuple[str, str]  # JSON Pointer, text
_Goals = list[Any] | dict[str, Any]  # a list, or goals by name


def inherit(message: Any, parent: SentientMessage) -> tuple[Any, tuple[Finding, ...]]:
    """A copy of the message with `request_id` and `session_id` of its parent, and a warning for each changed value.

    Seed, Metadata Continuity Checks: agents do not copy them reliably.
    """
    metadata = dict(message["metadata"])
    findings: list[Finding] = []
    for member, value in (("request_id", parent.metadata.request_id), ("session_id", parent.metadata.session_id)):
        was = metadata.get(member)
        if member not in metadata or not same_json(was, value):
            said = (
                quoted(was) if isinstance(was, str) else shorten(compact(was), 200) if member in metadata else "missing"
            )
            why = f"was {said}, overwritten with {quoted(value)} of the parent message"
            findings.append(warning(pointer("metadata", member), "inherited", why))
        metadata[member] = value
    return {**message, "metadata": metadata}, tuple(findings)


def parent_id(message: Any) -> str | None:
    """The parent id of a message that is not the first of its chain; the message is not validated yet."""
    metadata = message.get("metadata") if isinstance(message, dict) else None
    if not isinstance(metadata, dict):
        return None
    sequence, parent = metadata.get("sequence_number"), metadata.get("parent_message_id")
    later = isinstance(sequence, int) and not isinstance(sequence, bool) and sequence > 1
    return parent if later and isinstance(parent, str) else None


def check_chain(message: SentientMessage) -> tuple[Finding, ...]:
    """The errors of a message's position in the chain: the first has no parent, every other has one."""
    metadata = message.metadata
    path = "/metadata/parent_message_id"
    if metadata.sequence_number == 1 and metadata.parent_message_id is not None:
        return (error("/metadata/sequence_number", "sequence", "must be the parent's plus 1, so at least 2"),)
    if metadata.sequence_number > 1 and metadata.parent_message_id is None:
        return (error(path, "parent", f"is null, but message {metadata.sequence_number} of a chain has a parent"),)
    if metadata.parent_message_id == message.message_id:
        return (error(path, "parent", "is the message itself"),)
    return ()


def check_parent(message: SentientMessage, parent: SentientMessage | None, whole: bool) -> tuple[Finding, ...]:
    """The errors against the parent: it exists (checked when `whole`), and the sequence number is the next."""
    metadata = message.metadata
    if metadata.parent_message_id is None or metadata.sequence_number == 1:
        return ()
    if parent is None:
        why = f"no message {quoted(metadata.parent_message_id)} is known in this session"
        return (error("/metadata/parent_message_id", "parent_unknown", why),) if whole else ()
    due = parent.metadata.sequence_number + 1
    if metadata.sequence_number != due:
        why = f"is {metadata.sequence_number}, but must be the parent's plus 1: {due}"
        return (error("/metadata/sequence_number", "sequence", why),)
    return ()


def quality_warnings(message: SentientMessage) -> tuple[Finding, ...]:
    """The warnings of one message by itself: error group, goal count, provenance, governance paths, reasoning."""
    return tuple(islice(_quality(message), MAX_FINDINGS))


def _quality(message: SentientMessage) -> Iterator[Finding]:
    yield from _error_group(message)
    yield from _goal_count(message)
    yield from _provenance(message)
    if message.timestamp.timezone not in TIME_ZONES:
        why = f"{quoted(message.timestamp.timezone)} is no name of the IANA time zone database"
        yield warning("/timestamp/timezone", "timezone", why)
    for index, name in enumerate(message.audit.governance_files_consulted):
        if not _is_root_relative(name):
            path = pointer("audit", "governance_files_consulted", index)
            yield warning(path, "governance_path", f"{quoted(name)} is not relative to the root of the repository")
    if message.audit.reasoning is None or is_blank(message.audit.reasoning):
        yield warning("/audit/reasoning", "reasoning", "is empty: it must name the applied governance rules")


def _error_group(message: SentientMessage) -> Iterator[Finding]:
    """Seed, Error Fields: code and message are null exactly when there is no error."""
    for member in ("error_code", "error_message"):
        given = getattr(message.error, member) is not None
        if given != message.error.has_error:
            why = "is null, but has_error is true" if message.error.has_error else "is set, but has_error is false"
            yield warning(pointer("error", member), "error_fields", why)


def _is_root_relative(name: str) -> bool:
    parts = name.split("/")
    if len(parts) < 2 or "\\" in name or _NOT_RELATIVE.match(name):
        return False
    return all(part not in ("", ".", "..") for part in parts)


def _is_goals(message: SentientMessage) -> bool:
    return message.output.content_type == "goals" or message.agent.name == "goal_agent"


def is_objectives(message: SentientMessage) -> bool:
    """Whether the message is one of the objective agent."""
    return message.output.content_type == "objectives" or message.agent.name == "objective_agent"


def _goal_count(message: SentientMessage) -> Iterator[Finding]:
    """Compare the number of goals with the stated number; of several (one per objective), one or their sum must match."""
    stated = [int(number) for number in _GOAL_COUNT.findall(message.status.message or "")]
    if not stated or not _is_goals(message) or not isinstance(message.output.content, list | dict):
        return
    counted = sum(len(goals) for _, goals in _goal_lists(message.output.content))
    if counted not in (*stated, sum(stated)):
        why = f"states {stated[0]} goals, but output.content has {counted}"
        yield warning("/status/message", "goal_count", why)


def _goal_lists(content: Any) -> list[tuple[str, _Goals]]:
    """Every list of goals with its path: the members `goals` (one per objective), else the plain lists."""
    found = list(_called_goals(content, ("output", "content")))
    if found:
        return found
    if isinstance(content, list):
        return [("/output/content", content)]
    entries = content.items() if isinstance(content, dict) else ()
    return [(pointer("output", "content", key), entry) for key, entry in entries if isinstance(entry, list)]


def _called_goals(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str, _Goals]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "goals" and isinstance(item, list):
                yield pointer(*path, key), item
            elif key == "goals" and isinstance(item, dict):
                yield from _named_goals(item, (*path, key))
            else:
                yield from _called_goals(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _called_goals(item, (*path, index))


def _named_goals(goals: dict[str, Any], path: tuple[str | int, ...]) -> Iterator[tuple[str, _Goals]]:
    """The lists in an object `goals`: one per objective, or the object itself with goals by name."""
    inner = list(_called_goals(goals, path))
    inner += [(pointer(*path, key), item) for key, item in goals.items() if key != "goals" and isinstance(item, list)]
    yield from inner or [(pointer(*path), goals)]


def _provenance(message: SentientMessage) -> Iterator[Finding]:
    """Seed, First-Mention Provenance Rule: the first mention of a storage ref in a scope names its source.

    A text with the ref and its source outside of the parentheses is the acquisition itself, which needs no provenance. In a
    list of goals the acquisition counts as the first mention (the seed's Example 2); among objectives it does not.
    """
    content = message.output.content
    own = {ref.ref_id: ref.source_ref_id for ref in message.resources.storage_refs}
    if _is_goals(message):
        for path, goals in _goal_lists(content):
            yield from _scope(_texts(goals, path, "goal"), own, acquisition_counts=True)
    elif is_objectives(message):
        yield from _scope(_texts(content, "/output/content", "objective"), own, acquisition_counts=False)


def _texts(content: Any, path: str, member: str) -> list[_Text]:
    """The texts of a scope in order; an entry may be an object with its text in `member`."""
    if isinstance(content, str):
        return [(path, content)]
    entries: list[tuple[str | int, Any]] = []
    if isinstance(content, list):
        entries = list(enumerate(content))
    elif isinstance(content, dict):
        entries = list(content.items())
    texts: list[_Text] = []
    for key, entry in entries:
        if isinstance(entry, str):
            texts.append((path + pointer(key), entry))
        elif isinstance(entry, dict) and isinstance(entry.get(member), str):
            texts.append((path + pointer(key, member), entry[member]))
    return texts


def _scope(texts: list[_Text], own: dict[str, str | None], *, acquisition_counts: bool) -> Iterator[Finding]:
    settled: set[str] = set()
    for path, text in texts:
        sources = set(_SOURCE_REF.findall(_PROVENANCE.sub(" ", text)))  # outside of parentheses
        for stored, end in _first_mentions(text).items():
            if stored in settled:
                continue
            source = own.get(stored)
            given = _PROVENANCE.match(text, end)
            if given is not None and source in (None, given[1]):
                settled.add(stored)
            elif source in sources or (source is None and sources):
                settled |= {stored} if acquisition_counts else set()
            else:
                settled.add(stored)
                due = f"{stored} (acquired from {source or 'src_N'})"
                yield warning(path, "provenance", f"the first mention of {stored} must be: {due}")


def _first_mentions(text: str) -> dict[str, int]:
    """Each storage ref that a text names, and where its first mention ends."""
    found: dict[str, int] = {}
    for match in _STORAGE_REF.finditer(text):
        found.setdefault(match[0], match.end())
    return found
