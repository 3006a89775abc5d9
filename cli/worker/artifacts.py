"""Artifacts of a job: regular files below the command's folder that match a pattern and are newer than the job."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

MAX_ARTIFACTS = 100
"""References in one trace: at most about 5 KiB each, they stay below an envelope's 1 MiB."""
MAX_MATCHES = 10_000
"""Matches of one pattern that are looked at: a loop of symbolic links has no end of its own."""
MAX_PATH_BYTES = 1_024
"""Longest relative path that goes into a trace."""
CLOCK_SLACK_NS = 20_000_000
"""File systems stamp with the kernel's coarse clock, up to one timer tick (10 ms at most) behind the fine one."""
_CHUNK = 1 << 20


class CollectedArtifacts(NamedTuple):
    """`references` go into the trace; `skipped` says which matches were left out, and why."""

    references: list[dict[str, Any]]
    skipped: list[dict[str, str]]


class _NotAnArtifact(Exception):
    """Why a match is no artifact."""


def check_pattern(text: str) -> str:
    """A pattern relative to the command's folder. ValueError names the rule."""
    if not text or text.startswith("/") or "\0" in text or ".." in text.split("/"):
        raise ValueError("must be a pattern below the folder of the command, such as 'reports/*.xml', without ..")
    return text


def collect(patterns: Sequence[str], root: str, since_ns: int) -> CollectedArtifacts:
    """The artifacts of a job that began at `since_ns` (Unix nanoseconds): files changed before that are an older job's.

    A match that leads out of `root` over a symbolic link, or is no regular file, is skipped.
    """
    found = CollectedArtifacts([], [])
    names = {
        name
        for pattern in patterns
        for name in islice(glob.iglob(pattern, root_dir=root, recursive=True), MAX_MATCHES)  # noqa: PTH207 - bounded, and relative
    }
    for name in sorted(names):
        try:
            reference = describe(root, name, since_ns)
        except (_NotAnArtifact, OSError) as error:
            reason = str(error) if isinstance(error, _NotAnArtifact) else (error.strerror or "it cannot be read")
            found.skipped.append({"path": name.encode("utf-8", "replace").decode(), "reason": reason})
            continue
        if reference is not None:
            found.references.append(reference)
    if len(found.references) > MAX_ARTIFACTS:
        found.skipped.append(
            {"path": "", "reason": f"{len(found.references) - MAX_ARTIFACTS} more than {MAX_ARTIFACTS}"}
        )
    return CollectedArtifacts(found.references[:MAX_ARTIFACTS], found.skipped[:MAX_ARTIFACTS])


def describe(root: str, name: str, since_ns: int) -> dict[str, Any] | None:
    """The reference to one file, as `artifact_refs` has it; None for a folder, or a file older than the job.

    This is the one place to hand the content to a store of artifacts: it holds the open file that was checked. Raises OSError.
    """
    _check_name(name)
    path = os.path.join(root, name)  # noqa: PTH118 - names come from glob, relative to root
    mode = os.stat(path).st_mode  # noqa: PTH116 - before opening: to open a device or a pipe may already do something
    if stat.S_ISDIR(mode):
        return None
    if not stat.S_ISREG(mode):
        raise _NotAnArtifact("not a regular file")
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _NotAnArtifact("not a regular file")
        _check_inside(root, handle)
        if status.st_ctime_ns < since_ns - CLOCK_SLACK_NS:
            return None
        digest, size = hashlib.sha256(), 0
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return {"type": "file", "name": os.path.basename(name), "path": name, "size": size, "sha256": digest.hexdigest()}  # noqa: PTH119


def _check_name(name: str) -> None:
    try:
        octets = name.encode()
    except UnicodeEncodeError:
        raise _NotAnArtifact("its name is not UTF-8") from None
    if len(octets) > MAX_PATH_BYTES:
        raise _NotAnArtifact(f"its path is longer than {MAX_PATH_BYTES} bytes")


def _check_inside(root: str, handle: int) -> None:
    """The open file itself is asked where it lies, so that no link can be exchanged between look and use."""
    place = os.readlink(f"/proc/self/fd/{handle}")  # noqa: PTH115 - not a path of ours
    top = os.path.realpath(root).rstrip("/") + "/"
    if not place.startswith(top):
        raise _NotAnArtifact("it lies outside the folder of the command")
