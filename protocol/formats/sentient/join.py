"""Joins the branches of a chain: the works that one agent opened for several next agents end its assigned work together.

adapters.md, sentient: an assigned work closes with the end of the next one. With several next works it closes when all have
ended. Seed 000, Status Codes: `success` when all branches completed, `failed` when none did, else `partial` ("some
objectives/goals processed").
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from aghbus.protocol.base.text import byte_length, shorten
from aghbus.protocol.formats.attachments import CUT_BYTES, compact, cut_result
from aghbus.protocol.formats.sentient.log import SentientLogEntry, bounded
from aghbus.protocol.formats.sentient.message import ERROR_CODES, USER
from aghbus.protocol.formats.sentient.native import SentientIds, new_message

CONTENT_TYPE: Final = "branches"
ORCHESTRATION: Final = "orchestration"
"""The agent in the log entry of a join: no agent made that message."""
_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_NAMED: Final = 5  # failed branches that the message names
_MESSAGE_CHARS: Final = 200  # of the message of each


class Branch(msgspec.Struct, frozen=True):
    """How one branch ended: the agent that its work was opened for, the body of its terminal trace (state, message, result,
    artifact refs), the id of the envelope that ended it, the log entries of its part of the chain, the last message of
    that part (None: not known), and whether that names the Final Output agent."""

    agent: str
    body: dict[str, Any]
    closed_by: str | None = None
    log: tuple[SentientLogEntry, ...] = ()
    last: Any = None
    final: bool = False

    @property
    def completed(self) -> bool:
        """Whether the branch ended without a failure."""
        return bool(self.body["state"] == "completed")


def branches_in(text: bytes) -> tuple[bytes, ...]:
    """The messages of a JSON array, which are branches submitted together; `text` itself when it is no such array."""
    try:
        parts = _array(text)
    except (msgspec.DecodeError, RecursionError):
        return (text,)
    return tuple(map(bytes, parts)) or (text,)


def joined_body(branches: Sequence[Branch]) -> dict[str, Any]:
    """The body of the trace that ends the assigned work, with the results of all branches in the order of opening."""
    status = _status(branches)
    result: dict[str, Any] = {
        "content": [_part(branch) for branch in branches],
        "content_type": CONTENT_TYPE,
        "status": status,
    }
    if status == "partial":
        result["partial"] = True
    faults = [_fault(branch) for branch in branches if not branch.completed]
    if faults:
        result["error"] = faults[0]
    body = {"state": "failed" if status == "failed" else "completed", "message": _summary(branches), "result": result}
    refs = list(_artifact_refs(branches))
    return {**body, "artifact_refs": refs} if refs else body


def shorter_results(body: dict[str, Any]) -> dict[str, Any]:
    """The body of a join with the result of each branch truncated to 64 KiB."""
    result = body["result"]
    parts = [
        {**part, "result": cut_result(part["result"])} if isinstance(part.get("result"), dict) else part
        for part in result["content"]
    ]
    return {**body, "result": {**result, "content": parts}}


def end_message(
    body: dict[str, Any],
    branches: Sequence[Branch],
    *,
    message_id: str,
    now: int,
    chain: SentientIds,
    following: str | None = None,
) -> dict[str, Any]:
    """The end `body` of `branches`, one or joined, as a message of the platform for the agent `following` (None: for log and
    memory agent). Sequence, parent and resources are those of the branches. `now` is in Unix seconds."""
    message = new_message(message_id, now, ORCHESTRATION, chain.session_id, chain.request_id)
    content, content_type, partial = _output(body.get("result"))
    message["input"] = {
        "source": ", ".join(branch.agent for branch in branches),
        "content": [branch.body["state"] for branch in branches],
    }
    message["output"] = {"content": content, "content_type": content_type}
    why = "all branches have ended" if len(branches) > 1 else "the chain has ended"
    message["next_agent"] = {"name": following, "reason": why}
    code = "failed" if body["state"] != "completed" else "partial" if partial else "success"
    message["status"] = {"code": code, "message": body.get("message")}
    message["audit"]["reasoning"] = why
    known = [branch.last for branch in branches if branch.last is not None]
    if known and following != USER:
        newest = max((last["metadata"] for last in known), key=lambda ids: int(ids["sequence_number"]))
        message["metadata"].update({key: newest[key] for key in ("sequence_number", "parent_message_id")})
    message["resources"] = {group: _merged(group, known) for group in message["resources"]}
    faulty = next((branch for branch in branches if not branch.completed or _own_error(branch)), None)
    if faulty is not None:
        message["error"] = {"has_error": True, **_fault(faulty)}
    return message


def _merged(group: str, messages: Sequence[Any]) -> list[Any]:
    """The refs of one group of all messages, each once: as the first message has it that does not call it pending."""
    refs: dict[str, Any] = {}
    for message in messages:
        for ref in message["resources"][group]:
            held = refs.get(ref["ref_id"])
            if held is None or (held.get("status") == "pending" and ref.get("status") != "pending"):
                refs[ref["ref_id"]] = ref
    return list(refs.values())


def _output(result: Any) -> tuple[Any, str | None, bool]:
    """Content and content type of a result, and whether it is partial. Content is text, an array, an object or null."""
    if not isinstance(result, dict):
        return ({"result": result} if isinstance(result, bool | int | float) else result), None, False
    content, content_type = result.get("content", result), result.get("content_type")
    if isinstance(content, bool | int | float):
        content = result
    return content, content_type if isinstance(content_type, str) else None, result.get("partial") is True


def merged_log(branches: Sequence[Branch]) -> tuple[SentientLogEntry, ...]:
    """The log entries of all branches; those before the fan-out are in each of them, and once in the result."""
    return bounded(tuple(dict.fromkeys(entry for branch in branches for entry in branch.log)))


def _status(branches: Sequence[Branch]) -> str:
    if not any(branch.completed for branch in branches):
        return "failed"
    whole = all(branch.completed and not _is_partial(branch) for branch in branches)
    return "success" if whole else "partial"


def _is_partial(branch: Branch) -> bool:
    result = branch.body.get("result")
    return isinstance(result, dict) and result.get("partial") is True


def _part(branch: Branch) -> dict[str, Any]:
    return {
        "agent": branch.agent,
        **{key: branch.body[key] for key in ("state", "message", "result") if branch.body.get(key) is not None},
    }


def _fault(branch: Branch) -> dict[str, Any]:
    """The error of a failed branch: the valid members of its own, else those of a failure with the message of its end."""
    own = _own_error(branch)
    code, text, count, recoverable = map(own.get, ("error_code", "error_message", "retry_count", "recoverable"))
    said = branch.body.get("message") or f"the work of {branch.agent} is {branch.body['state']}"
    return {
        "error_code": code if isinstance(code, str) and code in ERROR_CODES else "PROCESSING_ERROR",
        "error_message": text if isinstance(text, str) else said,
        "retry_count": count if type(count) is int and count >= 0 else None,
        "recoverable": recoverable if isinstance(recoverable, bool) else None,
    }


def _own_error(branch: Branch) -> dict[str, Any]:
    result = branch.body.get("result")
    own = result.get("error") if isinstance(result, dict) else None
    return own if isinstance(own, dict) else {}


def _summary(branches: Sequence[Branch]) -> str:
    failed = [branch for branch in branches if not branch.completed]
    text = f"{len(branches) - len(failed)} of {len(branches)} branches completed"
    named = [f"{branch.agent} ({_said(branch)})" for branch in failed[:_NAMED]]
    more = [f"{len(failed) - _NAMED} more"] if len(failed) > _NAMED else []
    return f"{text}; failed: {', '.join(named + more)}" if failed else text


def _said(branch: Branch) -> str:
    return shorten(str(branch.body.get("message") or branch.body["state"]), _MESSAGE_CHARS)


def _artifact_refs(branches: Sequence[Branch]) -> Iterator[Any]:
    """The artifact refs of all branches, each once, as many as fit CUT_BYTES of JSON."""
    seen: set[str] = set()
    room = CUT_BYTES
    for branch in branches:
        for ref in branch.body.get("artifact_refs") or ():
            text = compact(ref)
            if text in seen:
                continue
            seen.add(text)
            room -= byte_length(text) + 1
            if room < 0:
                return
            yield ref
