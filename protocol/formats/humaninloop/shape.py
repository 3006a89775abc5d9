"""Validates the two envelopes of ADR-007: required members, types, values (seed 001, Agent Input and Output Envelope).

Members that the ADR does not name are kept and not checked.
"""

from collections.abc import Generator, Iterator
from itertools import islice
from typing import Any, Final, Literal

from aghbus.protocol.base.text import has_control, is_blank
from aghbus.protocol.formats.common import error, warning
from aghbus.protocol.formats.model import Finding
from aghbus.protocol.formats.strict_json import pointer

ShapeKind = Literal["input", "output"]

INPUT_REQUIRED: Final = ("context", "paths", "task")
OUTPUT_REQUIRED: Final = ("success", "summary", "artifacts", "recommendation")
RECOMMENDATIONS: Final = ("proceed", "retry", "escalate")
OPERATIONS: Final = ("create", "update")
_MAX_FINDINGS: Final = 100  # per message

Path = tuple[str | int, ...]


def kind_of(message: Any) -> ShapeKind | Finding:
    """Whether a message is an input or an output, by its required members; the error when it is neither or both.

    A message with members of only one of them is that one, so that its missing members are reported.
    """
    if not isinstance(message, dict):
        return error("", "type", "must be a JSON object: an input envelope or an output envelope")
    as_input = [key for key in INPUT_REQUIRED if key in message]
    as_output = [key for key in OUTPUT_REQUIRED if key in message]
    whole_input = len(as_input) == len(INPUT_REQUIRED)
    whole_output = len(as_output) == len(OUTPUT_REQUIRED)
    if whole_input and whole_output:
        return error("", "ambiguous_envelope", "has all required members of an input and of an output envelope")
    if whole_input or (as_input and not as_output):
        return "input"
    if whole_output or (as_output and not as_input):
        return "output"
    wanted = f"input ({', '.join(INPUT_REQUIRED)}) or of an output envelope ({', '.join(OUTPUT_REQUIRED)})"
    return error("", "unknown_envelope", f"does not have the required members of an {wanted}")


def check_input(message: Any) -> tuple[Finding, ...]:
    """The findings of an input envelope; accepts any JSON value."""
    return tuple(islice(_input_faults(message), _MAX_FINDINGS))


def check_output(message: Any) -> tuple[Finding, ...]:
    """The findings of an output envelope, except for artifact paths; accepts any JSON value."""
    return tuple(islice(_output_faults(message), _MAX_FINDINGS))


def state_of(message: dict[str, Any]) -> str:
    """The trace state of a valid output envelope (adapters.md, humaninloop, the table)."""
    if message["recommendation"] == "proceed":
        return "completed" if message["success"] else "failed"
    return "failed" if message["recommendation"] == "retry" else "needs_input"


def feature_root_of(opening: Any) -> str | None:
    """`paths.feature_root` of an input envelope; None when there is none."""
    paths = opening.get("paths") if isinstance(opening, dict) else None
    root = paths.get("feature_root") if isinstance(paths, dict) else None
    return root if isinstance(root, str) else None


def _input_faults(message: Any) -> Iterator[Finding]:
    if not isinstance(message, dict):
        yield error("", "type", "must be a JSON object")
        return
    yield from _missing(message, INPUT_REQUIRED, ())
    context = message.get("context", {})
    if (yield from _check_type(context, dict, ("context",), "an object")) and "context" in message:
        yield from _lacking(context, ("feature_id", "workflow", "iteration"), ("context",))
        yield from _name(context, "feature_id", ("context",))
        yield from _name(context, "workflow", ("context",))
        yield from _iteration(context)
    yield from _paths(message.get("paths", {}))
    task = message.get("task", {})
    if (yield from _check_type(task, dict, ("task",), "an object")) and "task" in message:
        yield from _lacking(task, ("action",), ("task",))
        yield from _name(task, "action", ("task",))
        yield from _check_type(task.get("params", {}), dict, ("task", "params"), "an object")
    yield from _strings(message, "prior_context")


def _output_faults(message: Any) -> Iterator[Finding]:
    if not isinstance(message, dict):
        yield error("", "type", "must be a JSON object")
        return
    yield from _missing(message, OUTPUT_REQUIRED, ())
    yield from _check_type(message.get("success", True), bool, ("success",), "true or false")
    summary = message.get("summary", "-")
    if (yield from _check_type(summary, str, ("summary",), "a string")) and is_blank(summary):
        yield warning("/summary", "blank_summary", "is blank")
    artifacts = message.get("artifacts", [])
    if (yield from _check_type(artifacts, list, ("artifacts",), "an array, empty when there are no files")):
        for index, artifact in enumerate(artifacts):
            yield from _artifact(artifact, ("artifacts", index))
    yield from _strings(message, "notes")
    yield from _one_of(message, "recommendation", RECOMMENDATIONS, ())
    if message.get("success") is False and message.get("recommendation") == "proceed":
        yield warning("/recommendation", "success_recommendation", "proceed without success: reported as failed")


def _artifact(artifact: Any, path: Path) -> Iterator[Finding]:
    if not (yield from _check_type(artifact, dict, path, "an object")):
        return
    yield from _missing(artifact, ("path", "operation", "content"), path)
    yield from _check_type(artifact.get("path", ""), str, (*path, "path"), "a string")
    yield from _one_of(artifact, "operation", OPERATIONS, path)
    yield from _check_type(
        artifact.get("content", ""), str, (*path, "content"), "a string: the whole content of the file"
    )


def _paths(paths: Any) -> Iterator[Finding]:
    """Paths of an input are only read by the agent: any path is allowed, without control characters."""
    if not (yield from _check_type(paths, dict, ("paths",), "an object of names and paths")):
        return
    for name, value in paths.items():
        here = ("paths", name)
        if (yield from _check_type(value, str, here, "a string")) and (is_blank(value) or has_control(value)):
            yield error(pointer(*here), "path_characters", "is blank or contains control characters")


def _iteration(context: dict[str, Any]) -> Iterator[Finding]:
    iteration = context.get("iteration", 1)
    if isinstance(iteration, bool) or not isinstance(iteration, int):
        yield error("/context/iteration", "type", "must be an integer")
    elif iteration < 1:
        yield error("/context/iteration", "range", "must be 1 or more")


def _missing(members: dict[str, Any], wanted: tuple[str, ...], path: Path) -> Iterator[Finding]:
    for name in wanted:
        if name not in members:
            yield error(pointer(*path, name), "required", "is required")


def _lacking(members: dict[str, Any], wanted: tuple[str, ...], path: Path) -> Iterator[Finding]:
    """The members of the ADR's example that are missing: contents can vary (seed 001, Design Principle)."""
    for name in wanted:
        if name not in members:
            yield warning(
                pointer(*path, name), "missing", "is missing: the text, intent or thread of the envelope lacks it"
            )


def _name(members: dict[str, Any], name: str, path: Path) -> Iterator[Finding]:
    value = members.get(name, "-")
    if (yield from _check_type(value, str, (*path, name), "a string")) and is_blank(value):
        yield error(pointer(*path, name), "blank", "must not be blank")


def _strings(message: dict[str, Any], name: str) -> Iterator[Finding]:
    values = message.get(name, [])
    if (yield from _check_type(values, list, (name,), "an array of strings")):
        for index, value in enumerate(values):
            yield from _check_type(value, str, (name, index), "a string")


def _one_of(members: dict[str, Any], name: str, values: tuple[str, ...], path: Path) -> Iterator[Finding]:
    if name in members and not (isinstance(members[name], str) and members[name] in values):
        yield error(pointer(*path, name), "enum", f"must be one of {', '.join(values)}")


def _check_type(value: Any, wanted: type, path: Path, rule: str) -> Generator[Finding, None, bool]:
    if isinstance(value, wanted):
        return True
    yield error(pointer(*path), "type", f"must be {rule}")
    return False
