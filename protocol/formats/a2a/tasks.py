"""A work as an A2A task: `TaskView` takes the messages of the work in their order, and returns what changed for the client.

A snapshot and a stream are made by the same steps, so that they agree, also over a stop in between.
"""

from collections.abc import Mapping
from typing import Any, Final

from aghbus.protocol.agh.lifecycle import TRANSITIONS
from aghbus.protocol.formats.a2a.parts import Json, artifacts_of, bounded, parts_of
from aghbus.protocol.formats.timestamps import utc

CARRIED: Final = "aghbus.a2a"
"""The key in `ext` of what an A2A message had besides its parts."""
MESSAGE: Final = "message"
"""In that member of a trace `completed`: true when its text is the answer to the message, as agents without tasks give it."""
AUTH_REQUIRED: Final = "aghbus.auth_required"
"""The key in `ext` of a trace `needs_input`: true when an authorization is asked for."""

SUBMITTED: Final = "TASK_STATE_SUBMITTED"
WORKING: Final = "TASK_STATE_WORKING"
REJECTED: Final = "TASK_STATE_REJECTED"
STATES: Final = {
    "submitted": SUBMITTED,
    "working": WORKING,
    "needs_input": "TASK_STATE_INPUT_REQUIRED",
    "completed": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "canceled": "TASK_STATE_CANCELED",
}
"""The state of a task by that of its work; two more follow from the message that led to it."""
ENDED: Final = frozenset({STATES["completed"], STATES["failed"], STATES["canceled"], REJECTED})
INTERRUPTED: Final = frozenset({STATES["needs_input"], "TASK_STATE_AUTH_REQUIRED"})
WORK_STATES: Final = {
    **{theirs: ours for ours, theirs in STATES.items()},
    REJECTED: "failed",
    "TASK_STATE_AUTH_REQUIRED": "needs_input",
}
"""The state of the work of a task in each state."""

_WITHOUT_EFFECT: Final = ("ignored", "rejected")
_COPIED: Final = {"metadata": "metadata", "extensions": "extensions", "reference_task_ids": "referenceTaskIds"}


def carried(message: Json, context_id: str | None, digest: str, layout: list[Json] | None) -> Json:
    """The member of `ext` for a client's message. `context_id`: the client's own, if that is not the thread. `digest` is of the
    whole message, so that another one with the same id is noticed."""
    kept: Json = {"message_id": message["messageId"], "digest": digest}
    if context_id is not None:
        kept["context_id"] = context_id
    if layout is not None:
        kept["parts"] = layout
    kept.update({ours: message[theirs] for ours, theirs in _COPIED.items() if message.get(theirs)})
    return {CARRIED: kept}


class TaskView:
    """One task. `apply` each message of its work, oldest first."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.context_id = ""
        self.state = SUBMITTED
        self.target = ""
        self.opening_digest: str | None = None
        self.answer: Json | None = None
        """The `Message` that answers in place of the task, if the worker wants that."""
        self.opened_ms = self.changed_ms = 0
        self.work_ids: set[str] = set()
        self.last_seq = 0
        self._work_state = "submitted"
        self._message: Json | None = None
        self._history: list[Json] = []
        self._artifacts: dict[str, Json] = {}

    def has_ended(self) -> bool:
        """Whether nothing can follow."""
        return self.state in ENDED

    def stands_still(self) -> bool:
        """Whether it has ended or waits for its client."""
        return self.state in ENDED or self.state in INTERRUPTED

    def apply(self, message: Any, envelope: Mapping[str, Any]) -> list[Json]:
        """Take one stored message (`protocol/api/messages.py`) with its envelope decoded: the `StreamResponse`s that follow."""
        self.last_seq = max(self.last_seq, message.seq)
        if message.outcome is None or message.outcome in _WITHOUT_EFFECT or not envelope:
            return []
        self.work_ids.add(message.work_id or "")
        body = envelope.get("body")
        kind, body = message.kind, body if isinstance(body, dict) else {}
        if message.outcome == "opened":
            return self._open(message, envelope, body)
        self.changed_ms = message.received_ms
        if kind in ("say", "capability"):
            return self._say(message, envelope, body)
        return self._step(message, envelope, body)

    def hand_over(self) -> None:
        """Forget the end at a peer: another one has the work now."""
        self.state, self._work_state = SUBMITTED, "submitted"
        self._message = None

    def task(self, history_length: int | None = None, *, artifacts: bool = True) -> Json:
        """The `Task`. `history_length`: of the newest messages, all without it."""
        made: Json = {"id": self.task_id, "contextId": self.context_id, "status": self._status()}
        if artifacts and self._artifacts:
            made["artifacts"] = [*self._artifacts.values()]
        length = len(self._history) if history_length is None else min(history_length, len(self._history))
        if length > 0:
            made["history"] = self._history[-length:]
        return made

    def _open(self, message: Any, envelope: Mapping[str, Any], body: Json) -> list[Json]:
        self.state, self._work_state = SUBMITTED, "submitted"
        if self._history:  # handed over
            return [self._status_update()]
        self.opened_ms = self.changed_ms = message.received_ms
        self.target = message.to or ""
        kept = _kept(envelope)
        self.opening_digest = kept.get("digest")
        self.context_id = str(kept.get("context_id") or message.thread_id or message.direct_id or "")
        self._history.append(self._said("ROLE_USER", message, envelope, body))
        return []

    def _say(self, message: Any, envelope: Mapping[str, Any], body: Json) -> list[Json]:
        said = self._said("ROLE_USER" if message.direction == "out" else "ROLE_AGENT", message, envelope, body)
        before, self._work_state = self._work_state, TRANSITIONS.get((self._work_state, "message"), self._work_state)
        if message.direction != "out":
            self._status_message(said)
            return [self._status_update()]
        if before == self._work_state:
            self._history.append(said)
            return []
        self.state = STATES[self._work_state]
        self._status_message(None)
        self._history.append(said)
        return [self._status_update()]

    def _step(self, message: Any, envelope: Mapping[str, Any], body: Json) -> list[Json]:
        """A trace or a receipt."""
        is_trace = message.kind == "trace"
        event = f"trace:{body.get('state')}" if is_trace else f"receipt:{body.get('status')}"
        after = TRANSITIONS.get((self._work_state, event))
        if after is None or event in ("receipt:duplicate", "receipt:expired", "receipt:unsupported"):
            return []
        before, self._work_state = self.state, after
        self.state = REJECTED if event == "receipt:rejected" else STATES[after]
        if after == "needs_input" and _extensions(envelope).get(AUTH_REQUIRED) is True:
            self.state = "TASK_STATE_AUTH_REQUIRED"
        text = body.get("message") if is_trace else body.get("detail") or body.get("reason_code")
        said = None
        if isinstance(text, str) and text:
            said = self._said("ROLE_AGENT", message, envelope, {"text": text})
        if after == "completed" and _kept(envelope).get(MESSAGE) is True:
            self.answer = said
        updates = []
        for artifact in artifacts_of(body) if is_trace else ():
            self._artifacts[artifact["artifactId"]] = artifact
            update = {"taskId": self.task_id, "contextId": self.context_id, "artifact": artifact, "lastChunk": True}
            updates.append({"artifactUpdate": update})
        if said is None and self.state == before:
            return updates
        self._status_message(said)
        return [*updates, self._status_update()]

    def _status_message(self, said: Json | None) -> None:
        """The message of the status; the one before it becomes part of the history."""
        if self._message is not None:
            self._history.append(self._message)
        self._message = said

    def _status(self) -> Json:
        status: Json = {"state": self.state, "timestamp": timestamp(self.changed_ms)}
        if self._message is not None:
            status["message"] = self._message
        return status

    def _status_update(self) -> Json:
        return {"statusUpdate": {"taskId": self.task_id, "contextId": self.context_id, "status": self._status()}}

    def _said(self, role: str, message: Any, envelope: Mapping[str, Any], body: Json) -> Json:
        kept, artifacts = _kept(envelope), body.get("artifacts")
        text = str(body.get("text") or "")
        parts = parts_of(text, artifacts if isinstance(artifacts, list) else [], kept.get("parts"))
        said = {
            "messageId": str(kept.get("message_id") or message.id),
            "contextId": self.context_id,
            "taskId": self.task_id,
            "role": role,
            "parts": parts or [{"text": text}],
        }
        said.update({theirs: bounded(kept[ours]) for ours, theirs in _COPIED.items() if _fits(theirs, kept.get(ours))})
        return said


def timestamp(ms: int) -> str:
    """Unix milliseconds as A2A writes them: `2026-11-28T16:00:00.000Z`."""
    seconds, rest = divmod(ms, 1000)
    return f"{utc(seconds)[:-1]}.{rest:03}Z"


def _fits(name: str, value: Any) -> bool:
    """Whether a member that a peer gave has the type that A2A asks for."""
    if name == "metadata":
        return isinstance(value, dict) and bool(value)
    return isinstance(value, list) and bool(value) and all(isinstance(entry, str) for entry in value)


def _extensions(envelope: Mapping[str, Any]) -> Json:
    ext = envelope.get("ext")
    return ext if isinstance(ext, dict) else {}


def _kept(envelope: Mapping[str, Any]) -> Json:
    kept = _extensions(envelope).get(CARRIED)
    return kept if isinstance(kept, dict) else {}
