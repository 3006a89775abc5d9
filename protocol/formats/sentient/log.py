"""The audit log of the Sentient platform: one entry per message, for files, for `ext`, and for the memory agent.

Seed 000, Audit Log Extraction. Newlines, control and bidirectional characters in values are escaped, so that no message can
forge an entry or a line.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from aghbus.protocol.agh.send import Draft
from aghbus.protocol.base.text import byte_length, escape
from aghbus.protocol.formats.attachments import compact, cut_text
from aghbus.protocol.formats.sentient.message import NAME, USER, SentientMessage
from aghbus.protocol.formats.timestamps import read_timestamp

LOG_KEY: Final = f"{NAME}.log"
LOG_BYTES: Final = 32_768  # of the entries in `ext`: with 64 KiB of text and result, far below 1 MiB
LOG_FOLDER: Final = ("system", "logs")  # seed, Extraction and Logging Process

MEMORY_INTENT: Final = "audit"
"""Intent of the say that calls the memory agent."""

_DAY: Final = re.compile(r"\d{8}", re.ASCII)
_END: Final = "---\n"
# An entry of another peer is accepted only in exactly this form: one line per label, in this order.
_ENTRY: Final = re.compile(
    r"\[TIMESTAMP: \d\d:\d\d:\d\d\]\n"
    r"\[AGENT: [^\n]*\]\n"
    r"\[INPUT SOURCE: [^\n]*\]\n"
    r"\[INPUT\]: [^\n]*\n"
    r"\[OUTPUT TYPE: [^\n]*\]\n"
    r"\[STATUS: [^\n]*\n"
    r"(?:\[ERROR: [^\n]*\n)?"
    r"\[RESOURCES\]: [^\n]*\n"
    r"\[COMPLIANCE NOTES\]: [^\n]*\n"
    r"\[GOVERNANCE FILES\]: [^\n]*\n"
    r"\[MESSAGE_ID: [^\n]*\]\n"
    r"\[SESSION_ID: [^\n]*\]\n"
    r"---\n",
    re.ASCII,
)


class SentientLogEntry(msgspec.Struct, frozen=True):
    """One entry: its day (YYYYMMDD, as written in `executed_at`) and its text, which ends with `---` and a newline."""

    day: str
    text: str


def entry_of(message: SentientMessage) -> SentientLogEntry:
    """The log entry of a message. Raises ValueError for an invalid timestamp."""
    stamp = read_timestamp(message.timestamp.executed_at)
    if stamp is None:
        raise ValueError("the timestamp of the message is invalid")
    lines = [
        f"[TIMESTAMP: {stamp.clock}]",
        f"[AGENT: {_line(message.agent.name)}]",
        f"[INPUT SOURCE: {_line(message.input.source)}]",
        f"[INPUT]: {_line(message.input.content)}",
        f"[OUTPUT TYPE: {_line(message.output.content_type)}]",
        f"[STATUS: {_line(message.status.code)}] {_line(message.status.message)}",
    ]
    if message.error.has_error:
        lines.append(f"[ERROR: {_line(message.error.error_code)}] {_line(message.error.error_message)}")
    lines += [
        f"[RESOURCES]: {_resources(message)}",
        f"[COMPLIANCE NOTES]: {_line(message.audit.compliance_notes)}",
        f"[GOVERNANCE FILES]: {', '.join(map(_line, message.audit.governance_files_consulted))}",
        f"[MESSAGE_ID: {_line(message.message_id)}]",
        f"[SESSION_ID: {_line(message.metadata.session_id)}]",
    ]
    return SentientLogEntry(stamp.day, "".join(line + "\n" for line in lines) + _END)


def log_path(day: str) -> tuple[str, str, str]:
    """Folders and file name of a day's log below the configured root. Raises ValueError for an invalid day."""
    if not _DAY.fullmatch(day):
        raise ValueError("a day is eight digits")
    return (*LOG_FOLDER, f"{day}.log")


def record_of(message: SentientMessage) -> dict[str, Any]:
    """The log record of a submitted message (SubmitPlan.record).

    `day` and `entry` for the log; `agent`, `session_id`, `request_id`, `message_id`; `ends_chain`: there is no next agent.
    """
    entry = entry_of(message)
    return {
        "day": entry.day,
        "entry": entry.text,
        "agent": message.agent.name,
        "session_id": message.metadata.session_id,
        "request_id": message.metadata.request_id,
        "message_id": message.message_id,
        "ends_chain": message.status.code != "pending" and message.next_agent.name in (None, USER),
    }


def with_log(draft: Draft, entries: Sequence[SentientLogEntry]) -> Draft:
    """The draft with `entries` (oldest first) in `ext["sentient.log"]`: the newest that fit LOG_BYTES of JSON."""
    kept = bounded(entries)
    if not kept:
        return draft
    ext = {**(draft.ext or {}), LOG_KEY: [msgspec.to_builtins(entry) for entry in kept]}
    return msgspec.structs.replace(draft, ext=ext)


def bounded(entries: Sequence[SentientLogEntry]) -> tuple[SentientLogEntry, ...]:
    """The newest entries that fit LOG_BYTES of JSON together, oldest first; an entry that is too large itself is omitted."""
    room = LOG_BYTES - len("[]")
    kept: list[SentientLogEntry] = []
    for entry in reversed(entries):
        size = byte_length(compact(msgspec.to_builtins(entry))) + len(",")
        if size > LOG_BYTES - len("[]"):
            continue
        if size > room:
            break
        room -= size
        kept.append(entry)
    return tuple(reversed(kept))


def entries_in(ext: Mapping[str, Any]) -> tuple[SentientLogEntry, ...]:
    """The valid entries in an envelope's `ext`, oldest first."""
    values = ext.get(LOG_KEY)
    found: list[SentientLogEntry] = []
    for value in values if isinstance(values, list) else ():
        try:
            entry = msgspec.convert(value, SentientLogEntry)
        except msgspec.ValidationError:
            continue
        lines = entry.text.split("\n")
        if _DAY.fullmatch(entry.day) and _ENTRY.fullmatch(entry.text) and all(line == escape(line) for line in lines):
            found.append(entry)
    return bounded(found)


def memory_say(message: Any, entries: Sequence[SentientLogEntry]) -> dict[str, Any]:
    """The body of the say that notifies the memory agent of a chain's end: the entries by day, then the last message as JSON.

    The envelope carries no message of the format, so a generated message delivers the text and intent to the agent.
    """
    return {"text": cut_text(by_day(bounded(entries)) + compact(message)), "intent": MEMORY_INTENT}


def by_day(entries: Iterable[SentientLogEntry]) -> str:
    """The texts of entries, with the name of the log file before the entries of each day."""
    parts: list[str] = []
    day = None
    for entry in entries:
        if entry.day != day:
            parts.append(f"{entry.day}.log\n")
            day = entry.day
        parts.append(entry.text)
    return "".join(parts)


def _line(value: Any) -> str:
    return escape(value if isinstance(value, str) else compact(value))


def _resources(message: SentientMessage) -> str:
    resources = message.resources
    groups = {
        "source_refs": [(ref.ref_id, ref.url) for ref in resources.source_refs],
        "storage_refs": [(ref.ref_id, ref.status) for ref in resources.storage_refs],
        "derived_refs": [(ref.ref_id, ref.asset_type) for ref in resources.derived_refs],
    }
    return ", ".join(
        f"{name}=" + ",".join(f"{_line(ref_id)}:{_line(value)}" for ref_id, value in pairs)
        for name, pairs in groups.items()
    )
