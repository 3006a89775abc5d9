"""Turns the exit of a command into the verb, message and result of the work's terminal trace."""

from __future__ import annotations

import json
import signal
from typing import Any, NamedTuple, NoReturn

from aghbus.cli.app.text import safe
from aghbus.cli.worker.process import Process, ProcessExit
from aghbus.protocol.base.text import shorten

MESSAGE_CHARACTERS = 500
"""Maximum length of a trace's message."""


class JobOutcome(NamedTuple):
    """The outcome to report: `verb` is complete or fail, or None when the work has already ended and nothing is sent."""

    verb: str | None
    message: str | None
    result: dict[str, Any] | None
    artifacts: list[dict[str, Any]]


def line(text: str) -> str:
    """A line of output as a trace's message: control characters escaped, then truncated to `MESSAGE_CHARACTERS`."""
    return shorten(safe(text), MESSAGE_CHARACTERS)


def outcome_of(process: Process, ended: ProcessExit, time_limit: float) -> JobOutcome:
    """The outcome of a command: exit code 0 completes the work, others fail it; after a cancellation nothing is sent."""
    if ended.stopped == "canceled":
        return JobOutcome(None, None, None, [])
    result = _result(process, ended)
    if ended.stopped == "timeout":
        result["timeout"] = True
        return JobOutcome("fail", f"timed out after {time_limit:g} s", result, [])
    if ended.stopped == "stopped":
        return JobOutcome("fail", "the worker was stopped before the command had ended", result, [])
    if ended.code == 0:
        said = line(process.stdout.last_line()) if "output" not in result else ""
        return JobOutcome("complete", said or None, result, [])
    return JobOutcome("fail", line(process.stderr.last_line()) or _how(ended.code), result, [])


def failed(message: str, **result: Any) -> JobOutcome:
    """The outcome of a job that failed without an exit code of its command."""
    return JobOutcome("fail", line(message), {"exit_code": None, **result}, [])


def _result(process: Process, ended: ProcessExit) -> dict[str, Any]:
    result: dict[str, Any] = {
        "exit_code": ended.code if ended.code >= 0 else 128 - ended.code,  # as a shell reports a signal
        "stderr": process.stderr.text(),
        "duration_s": round(ended.seconds, 3),
        "truncated": process.stdout.truncated or process.stderr.truncated,
    }
    if ended.code < 0:
        result["signal"] = _signal(-ended.code)
    output = None if process.stdout.truncated else _json_object(process.stdout.text())
    result["stdout" if output is None else "output"] = process.stdout.text() if output is None else output
    return result


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"ended by {_signal(-code)}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"SIG{number}"


def _json_object(text: str) -> dict[str, Any] | None:
    """`text` as one JSON object, or None. NaN and Infinity are Python's, not JSON's."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)
