"""Bodies and threads of the envelopes made from ADR-007 messages, for peers of other formats (adapters.md, humaninloop)."""

from typing import Any, Final

from aghbus.protocol.base.text import escape, shorten
from aghbus.protocol.formats.attachments import CUT_BYTES, NO_TEXT, cut_result, cut_text, size_of
from aghbus.protocol.formats.common import warning
from aghbus.protocol.formats.derived_ids import thread_id
from aghbus.protocol.formats.humaninloop.files import FilePlan
from aghbus.protocol.formats.model import Finding

_NAME: Final = "humaninloop"
_MAX_NAME_CHARACTERS: Final = 120  # of workflow, action and feature in the text of a say


def say_body(message: dict[str, Any]) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """The body: one line of text, action as intent, paths as artifacts (adapters.md, humaninloop)."""
    action: str | None = message["task"].get("action")
    body: dict[str, Any] = {"text": _text(message["context"], action)}
    if action is not None:
        body["intent"] = cut_text(action)
    paths = [{"type": "path", "name": key, "path": value} for key, value in message["paths"].items()]
    artifacts, shortened = truncate_list(paths, "/paths", "artifacts")
    if artifacts:
        body["artifacts"] = artifacts
    return body, shortened


def _text(input_context: dict[str, Any], action: str | None) -> str:
    """`WORKFLOW: ACTION FEATURE, iteration N`, as far as the members are there."""
    workflow, name, feature = (
        None if text is None else shorten(escape(text), _MAX_NAME_CHARACTERS)
        for text in (input_context.get("workflow"), action, input_context.get("feature_id"))
    )
    iteration = input_context.get("iteration")
    task = " ".join(part for part in (name, feature) if part)
    text = ": ".join(part for part in (workflow, task) if part)
    parts = (text, None if iteration is None else f"iteration {iteration}")
    return ", ".join(part for part in parts if part) or NO_TEXT


def thread_of(input_context: dict[str, Any], message_id: str) -> str:
    """The thread of feature and workflow; one of its own without a feature."""
    feature = input_context.get("feature_id")
    if feature is None:
        return thread_id(_NAME, "message", message_id)
    return thread_id(_NAME, feature, input_context.get("workflow", ""))


def result_of(message: dict[str, Any], files: FilePlan) -> dict[str, Any]:
    """The result for native peers: all members without a field in a trace, with paths relative to the feature root."""
    result: dict[str, Any] = {"success": message["success"], "recommendation": message["recommendation"]}
    if "notes" in message:
        result["notes"] = message["notes"]
    result["artifacts"] = [
        {"path": file.path, "operation": file.operation, "content": file.content} for file in files.files
    ]
    return cut_result(result)


def truncate_list(
    entries: list[dict[str, Any]], path: str, member: str
) -> tuple[list[dict[str, Any]], tuple[Finding, ...]]:
    """As many entries as fit CUT_BYTES of JSON; `ext` has the complete list."""
    used = 2
    for count, entry in enumerate(entries):
        used += size_of(entry) + 1
        if used > CUT_BYTES:
            cut = f"the first {count} of {len(entries)} are in `{member}` of the envelope"
            return entries[:count], (warning(path, "list_cut", cut),)
    return entries, ()
