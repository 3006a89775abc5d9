"""Works of the bus as tasks of an A2A agent: what goes out, and what comes back (docs/adapters/a2a.md, Join an A2A agent).

Tasks, messages and events are JSON of A2A 1.0, as the proto names it in lower camel case. Text of the agent is untrusted.
"""

import binascii
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aghbus.protocol.base.text import is_blank, shorten, trim
from aghbus.protocol.formats.a2a.parts import Json, parts_of, references_of, with_content
from aghbus.protocol.formats.a2a.tasks import AUTH_REQUIRED as LOGIN
from aghbus.protocol.formats.a2a.tasks import CARRIED, MESSAGE

SUBMITTED: Final = "TASK_STATE_SUBMITTED"
COMPLETED: Final = "TASK_STATE_COMPLETED"
FAILED: Final = "TASK_STATE_FAILED"
CANCELED: Final = "TASK_STATE_CANCELED"
REJECTED: Final = "TASK_STATE_REJECTED"
INPUT_REQUIRED: Final = "TASK_STATE_INPUT_REQUIRED"
AUTH_REQUIRED: Final = "TASK_STATE_AUTH_REQUIRED"
ENDED: Final = frozenset({COMPLETED, FAILED, CANCELED, REJECTED})
ASKS: Final = frozenset({INPUT_REQUIRED, AUTH_REQUIRED})
SKILL: Final = "skill"
"""In the metadata of a message: the skill that the work asks for."""

TEXT_BYTES: Final = 65_536
"""Longest message of a trace; longer text becomes an artifact."""
RESULT_BYTES: Final = 262_144
"""Largest result of a trace; a larger one becomes an artifact."""
SUMMARY_CHARACTERS: Final = 300
UPDATE_CHARACTERS: Final = 500
_VERBS: Final = {COMPLETED: "complete", FAILED: "fail", CANCELED: "cancel", REJECTED: "fail"}
_EMPTY: Final = {
    FAILED: "the agent's task failed, without a reason",
    CANCELED: "the agent canceled its task",
    REJECTED: "the agent rejected the task, without a reason",
}
_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9._/:-]+")


class File(NamedTuple):
    """Content that becomes an artifact of the work; `about` has what its reference says besides."""

    name: str
    content: bytes
    about: Json


class Outcome(NamedTuple):
    """How a work ends: the action, its message and result, files to store as artifacts, references to what is elsewhere, and the
    `ext` of the trace."""

    verb: str
    message: str | None
    result: Json | None
    files: tuple[File, ...] = ()
    links: tuple[Json, ...] = ()
    ext: Json | None = None


class Skill(NamedTuple):
    """A skill of the agent's card as a capability: its id on the bus, and the fields of its record."""

    id: str
    record: Json


# out


def derived(opening_id: str, *what: str) -> str:
    """An id in the form of a UUID, the same for the same parts: a repetition is the same context or message to the agent."""
    hexes = hashlib.sha256("\0".join(("a2a", opening_id, *what)).encode()).hexdigest()
    return "-".join((hexes[:8], hexes[8:12], f"8{hexes[13:16]}", f"8{hexes[17:20]}", hexes[20:32]))


def opening_message(
    opening_id: str, envelope: Mapping[str, Any], skill: str | None, files: Mapping[str, bytes]
) -> Json:
    """The message that begins the task of a work with this opening; `files` are the fetched artifacts by their URI."""
    record = (envelope.get("body") or {}).get("capability")
    if isinstance(record, dict):
        parts: list[Json] = [{"text": str(record.get("summary") or record.get("id"))}, {"data": record}]
    else:
        parts = _parts_of_say(envelope, files)
    made = {"messageId": derived(opening_id, "message"), "contextId": derived(opening_id, "context")}
    metadata = {"metadata": {SKILL: skill}} if skill else {}
    return {**made, "role": "ROLE_USER", "parts": parts, **metadata}


def further_message(
    message_id: str, envelopes: Sequence[Mapping[str, Any]], files: Mapping[str, bytes], task: Mapping[str, Any]
) -> Json:
    """The message to a task (`task_id`, `context_id`) with what its initiator said in the work: the parts of each say, in order."""
    parts = [part for envelope in envelopes for part in _parts_of_say(envelope, files)]
    made = {"messageId": message_id, "taskId": task["task_id"], "contextId": task["context_id"]}
    return {**made, "role": "ROLE_USER", "parts": parts}


def _parts_of_say(envelope: Mapping[str, Any], files: Mapping[str, bytes]) -> list[Json]:
    body, kept = envelope.get("body") or {}, (envelope.get("ext") or {}).get(CARRIED)
    layout = kept.get("parts") if isinstance(kept, dict) else None
    parts = parts_of(str(body.get("text") or ""), list(body.get("artifacts") or ()), layout)
    return [with_content(part, files[part["url"]]) if part.get("url") in files else part for part in parts]


# skills


def skills_of(card: Mapping[str, Any]) -> list[Skill]:
    """The skills of a card as capabilities. Of several with one id the first counts."""
    found: dict[str, Skill] = {}
    for skill in card.get("skills") or ():
        if isinstance(skill, dict) and (name := capability_id(str(skill.get("id") or ""))):
            found.setdefault(name, Skill(name, _record_of(skill, card)))
    return list(found.values())


def whole_agent(name: str, card: Mapping[str, Any]) -> Skill:
    """A capability for what the agent does as a whole, for an id that is none of its skills."""
    return Skill(name, _record_of({"name": card.get("name"), "description": card.get("description")}, card))


def capability_id(text: str) -> str:
    """The id of a skill as one of a capability: what is not a letter, a digit or one of `._/:-` is a hyphen; empty if nothing is
    left."""
    return _NOT_IN_AN_ID.sub("-", text).strip("-")[:200]


def _record_of(skill: Mapping[str, Any], card: Mapping[str, Any]) -> Json:
    description = _line(skill.get("description"))
    name = _line(skill.get("name")) or _line(card.get("name")) or "A2A agent"
    tags = ", ".join(_lines(skill.get("tags")))
    summary = f"{name}: {description}" if description and description != name else name
    record = {
        "summary": shorten(f"{summary} ({tags})" if tags else summary, SUMMARY_CHARACTERS),
        "outcome": description or f"what the agent {name} answers",
        "version": _line(card.get("version")) or None,
        "examples": _lines(skill.get("examples")),
        "context_needed": _lines(skill.get("inputModes") or card.get("defaultInputModes")),
        "artifacts_expected": _lines(skill.get("outputModes") or card.get("defaultOutputModes")),
    }
    return {key: value for key, value in record.items() if value}


def _line(value: object) -> str:
    """A text of the card in one line."""
    text = " ".join(value.split()) if isinstance(value, str) else ""
    return "".join(one for one in text if one.isprintable())


def _lines(values: object) -> list[str]:
    entries = values if isinstance(values, list) else []
    return [line for entry in entries[:100] if (line := _line(entry))]


# back


def state_of(task: Mapping[str, Any]) -> str:
    """The state of a task; empty when it has none."""
    return str((task.get("status") or {}).get("state") or "")


def merged(task: Json, update: Mapping[str, Any]) -> Json:
    """The task after one event of its stream: a task, a status or an artifact."""
    if "task" in update:
        return dict(update["task"])
    if "statusUpdate" in update:
        return {**task, "status": update["statusUpdate"].get("status") or {}}
    if "artifactUpdate" not in update:
        return task
    event = update["artifactUpdate"]
    artifact, kept = event.get("artifact") or {}, list(task.get("artifacts") or ())
    for index, one in enumerate(kept):
        if one.get("artifactId") == artifact.get("artifactId"):
            parts = [*(one.get("parts") or ()), *(artifact.get("parts") or ())]
            kept[index] = {**one, "parts": parts} if event.get("append") else artifact
            return {**task, "artifacts": kept}
    return {**task, "artifacts": [*kept, artifact]}


def artifact_size(update: Mapping[str, Any]) -> int:
    """Characters of an artifact, or a piece of one, that an event brings."""
    artifact = (update.get("artifactUpdate") or {}).get("artifact") or {}
    return sum(len(str(value)) for part in artifact.get("parts") or () for value in part.values())


def task_in(update: Mapping[str, Any]) -> tuple[str, str]:
    """The ids of task and context that an event names; empty when it names none."""
    event = next((update[key] for key in ("statusUpdate", "artifactUpdate") if key in update), None)
    if event is not None:
        return str(event.get("taskId") or ""), str(event.get("contextId") or "")
    task = update.get("task") or {}
    return str(task.get("id") or ""), str(task.get("contextId") or "")


def status_key(task: Mapping[str, Any]) -> str:
    """What tells one status of a task from another one: the id of its message, else its time and text."""
    status = task.get("status") or {}
    message = status.get("message") or {}
    parts = (state_of(task), message.get("messageId") or status.get("timestamp") or "", said(task))
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def said(task: Mapping[str, Any]) -> str:
    """The text of the task's status; empty without one."""
    return _text_of(((task.get("status") or {}).get("message") or {}).get("parts") or (), "\n")


def progress_of(task: Mapping[str, Any]) -> str | None:
    """The text of a progress report; None when the agent said nothing."""
    text = trim(said(task))
    return shorten(text, UPDATE_CHARACTERS) if text else None


def question_of(task: Mapping[str, Any]) -> tuple[str, Json | None, Json | None]:
    """The question of a task that asks: its text, its data as result, and the `ext`."""
    auth = state_of(task) == AUTH_REQUIRED
    text = trim(said(task)) or ("the agent asks for a login" if auth else "the agent asks for input, without a text")
    parts = ((task.get("status") or {}).get("message") or {}).get("parts") or ()
    more = [_shown(part) for part in parts if "text" not in part]
    return _cut(text, TEXT_BYTES), {"parts": more} if more else None, {LOGIN: True} if auth else None


def has_message(task: Mapping[str, Any], message_id: str) -> bool | None:
    """Whether a message is in the history of a task; None when the agent shows no history."""
    history = task.get("history") or ()
    return any(one.get("messageId") == message_id for one in history) if history else None


def outcome_of(task: Mapping[str, Any]) -> Outcome:
    """How the work of an ended task ends."""
    state = state_of(task)
    text = said(task)
    if state == REJECTED and not is_blank(text):
        text = f"the agent rejected the task: {text}"
    message = ((task.get("status") or {}).get("message") or {}).get("parts") or ()
    return _outcome(state, text, [part for part in message if "text" not in part], task.get("artifacts") or ())


def outcome_of_message(message: Mapping[str, Any]) -> Outcome:
    """How a work ends to which the agent answered without a task."""
    parts = message.get("parts") or ()
    end = _outcome(COMPLETED, _text_of(parts, "\n"), [part for part in parts if "text" not in part], ())
    return end._replace(ext={CARRIED: {MESSAGE: True}})


def _outcome(state: str, text: str, parts: Sequence[Json], artifacts: Sequence[Json]) -> Outcome:
    """Text of artifacts is the message if the status has none, one object is the result, bytes are files; the rest is listed in
    the result as `artifacts`."""
    names, files, links, data = set[str](), list[File](), list[Json](), list[Any]()
    listed: list[Json] = []
    for artifact in ({"parts": [*parts]}, *artifacts):
        name = str(artifact.get("name") or artifact.get("artifactId") or "")
        if found := _text_of(artifact.get("parts") or (), ""):
            listed.append({"name": name, "text": found})
        for part in artifact.get("parts") or ():
            title = str(part.get("filename") or name or "file")
            if "raw" in part:
                reference = references_of({**artifact, "parts": [part]}, {0: {}})[0]
                files.append(File(_unique(title, names), _bytes(part["raw"]), reference))
            elif "url" in part:
                links += references_of({**artifact, "parts": [part]}, {})
            elif "data" in part:
                data.append(whole_numbers(part["data"]))
                listed.append({"name": name, "data": data[-1]})
    if is_blank(text):
        text = "\n\n".join(one["text"] for one in listed if "text" in one)
        listed = [one for one in listed if "text" not in one]
    result: Json | None = {"artifacts": listed} if listed else None
    if len(listed) == 1 and len(data) == 1 and isinstance(data[0], dict):
        result = data[0]
    if len(text.encode()) > TEXT_BYTES:
        files.append(File(_unique("message.txt", names), text.encode(), {"type": "file", "media_type": "text/plain"}))
        text = _cut(text, TEXT_BYTES)
    if result is not None and len(encoded := json.dumps(result, ensure_ascii=False).encode()) > RESULT_BYTES:
        files.append(File(_unique("result.json", names), encoded, {"type": "file", "media_type": "application/json"}))
        result = None
    message = (text if not is_blank(text) else None) or _EMPTY.get(state)
    return Outcome(_VERBS[state], message, result, tuple(files), tuple(links))


def whole_numbers(value: Any) -> Any:
    """JSON that was a protobuf value, in which every number is a double, with integers again."""
    if isinstance(value, dict):
        return {name: whole_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [whole_numbers(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _text_of(parts: Sequence[Mapping[str, Any]], between: str) -> str:
    return between.join(str(part["text"]) for part in parts if isinstance(part.get("text"), str))


def _shown(part: Mapping[str, Any]) -> Json:
    """A part in a result, without bytes."""
    if "raw" in part:
        return {"filename": part.get("filename") or "", "size": len(_bytes(part["raw"]))}
    return {key: whole_numbers(part[key]) for key in ("data", "url", "filename") if key in part}


def _bytes(raw: object) -> bytes:
    try:
        return binascii.a2b_base64(str(raw))
    except binascii.Error:
        return b""


def _unique(title: str, names: set[str]) -> str:
    """A name of an artifact made from a title of the agent."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", title.rpartition("/")[2]).lstrip(".-")[:100] or "file"
    name, number = stem, 1
    while name in names:
        number += 1
        name = f"{number}_{stem}"
    names.add(name)
    return name


def _cut(text: str, limit: int) -> str:
    return text if len(text.encode()) <= limit else text.encode()[: limit - 3].decode(errors="ignore") + "…"
