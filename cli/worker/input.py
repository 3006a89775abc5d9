"""The input of a command: one JSON object about its work, and a few environment variables.

Text of peers appears only in the JSON and in the values of variables with fixed names; never in a shell, argument or path.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from aghbus.cli.worker.conversation import Turn
from aghbus.cli.worker.process_group import JOB_VARIABLE

MAX_VARIABLE_BYTES = 32_768
"""Longest value of a variable. Linux allows 128 KiB each (execve(2), MAX_ARG_STRLEN) and 2 MiB together with the arguments."""
INHERITED = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"})
"""Variables of the worker that every command gets, and those that begin with `LC_`. Others may hold credentials."""
OMITTED = "AGH_OMITTED"
"""Space-separated names of omitted variables: too long, with a NUL, or not UTF-8. The JSON has their values."""


def document(message: dict[str, Any], conversation: Sequence[Turn] = ()) -> dict[str, Any]:
    """The input of the command: the opening message (a Message of the API) and what followed; docs/serve.md lists the fields."""
    envelope = message["envelope"]
    body = envelope.get("body") or {}
    return {
        "work_id": message["work_id"],
        "from": message["sender"],
        "trust": message["trust"],
        "kind": message["kind"],
        "workspace_id": message["workspace_id"],
        "channel": message["channel"],
        "thread_id": message["thread_id"],
        "direct_id": message["direct_id"],
        "intent": body.get("intent"),
        "text": body.get("text"),
        "artifacts": body.get("artifacts") or [],
        "capability": body.get("capability"),
        "body": body,
        "envelope": envelope,
        "conversation": [_line(turn, message["to"]) for turn in conversation],
    }


def written(message: dict[str, Any], conversation: Sequence[Turn]) -> bytes:
    """The input of the command as bytes."""
    return json.dumps(document(message, conversation)).encode() + b"\n"


def _line(turn: Turn, us: str) -> dict[str, Any]:
    """An entry of `conversation`: a question of an earlier run with its result, or a message of the initiator."""
    if turn.finished is not None:
        return {"from": us, "kind": "question", "text": turn.text, "result": turn.finished["result"]}
    assert turn.message is not None
    body = turn.message["envelope"].get("body") or {}
    return {"from": turn.message["sender"], "kind": turn.message["kind"], "text": turn.text, "body": body}


def write(path: Path, content: bytes) -> None:
    """Write the input to a file with mode 0600. Raises OSError."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)


def inherited(base: Mapping[str, str], more: Collection[str]) -> dict[str, str]:
    """The variables of `base` that a command gets: the INHERITED ones, `LC_…`, and those named by `more`."""
    return {name: value for name, value in base.items() if name in INHERITED or name.startswith("LC_") or name in more}


def environment(
    base: Mapping[str, str],
    message: dict[str, Any],
    token: str,
    path: Path,
    *,
    answer: str | None = None,
    socket: str | None = None,
    carrier: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """`base` without the variables of an outer worker, and with ours; unsuitable values are omitted.

    `answer` is the latest answer, `socket` the path of the daemon's socket, both None where there is none. `carrier` is the
    trace that the command belongs to.
    """
    fields = document(message)
    wanted = {
        "AGH_WORK_ID": fields["work_id"],
        "AGH_FROM": fields["from"],
        "AGH_TRUST": fields["trust"],
        "AGH_KIND": fields["kind"],
        "AGH_WORKSPACE_ID": fields["workspace_id"],
        "AGH_CHANNEL": fields["channel"],
        "AGH_THREAD_ID": fields["thread_id"],
        "AGH_DIRECT_ID": fields["direct_id"],
        "AGH_INTENT": fields["intent"],
        "AGH_TEXT": fields["text"],
        "AGH_ANSWER": answer,
        "AGH_INPUT": str(path),
        JOB_VARIABLE: token,
        "AGHD_API_SOCKET": socket,
        **{name.upper(): value for name, value in (carrier or {}).items()},
    }
    given = {name: value for name, value in wanted.items() if isinstance(value, str)}
    omitted = [name for name, value in given.items() if not _fits(value)]
    clean = {name: value for name, value in base.items() if name not in wanted and name != OMITTED}
    clean.update((name, value) for name, value in given.items() if name not in omitted)
    if omitted:
        clean[OMITTED] = " ".join(omitted)
    return clean


def _fits(value: str) -> bool:
    try:
        return "\0" not in value and len(value.encode()) <= MAX_VARIABLE_BYTES
    except UnicodeEncodeError:  # a lone surrogate, which JSON can carry
        return False
