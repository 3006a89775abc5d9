"""Artifacts of a job: regular files below the command's folder that match a pattern and were changed during the job."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

from aghbus.client.errors import ClientError

MAX_ARTIFACTS = 100
"""References in one trace: at about 5 KiB each they fit an envelope of 1 MiB."""
MAX_MATCHES = 10_000
"""Matches of one pattern that are examined; bounds loops of symbolic links."""
MAX_PATH_BYTES = 1_024
"""Longest relative path in a trace."""
CLOCK_SLACK_NS = 20_000_000
"""File timestamps use the kernel's coarse clock, which is up to one timer tick (at most 10 ms) behind."""
_CHUNK = 1 << 20


Put = Callable[[BinaryIO, int, str], dict[str, Any]]
"""Stores the content of an open file, of so many bytes, under a name; the members of the reference that name it."""


class CollectedArtifacts(NamedTuple):
    """`references` for the trace; `skipped` matches with the reason."""

    references: list[dict[str, Any]]
    skipped: list[dict[str, str]]


class _NotAnArtifact(Exception):
    """The match is not an artifact; the message is the reason."""


def check_pattern(text: str) -> str:
    """Validate a pattern relative to the command's folder. Raises ValueError."""
    if not text or text.startswith("/") or "\0" in text or ".." in text.split("/"):
        raise ValueError("must be a pattern below the folder of the command, such as 'reports/*.xml', without ..")
    return text


def collect(patterns: Sequence[str], root: str, since_ns: int) -> CollectedArtifacts:
    """The artifacts of a job that began at `since_ns` (Unix nanoseconds). Files that were last changed before are ignored.

    Matches outside `root` (through symbolic links) and matches that are not regular files are skipped.
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
    """The reference to one file, as in `artifact_refs`; None for a folder or a file older than the job. Raises OSError."""
    _check_name(name)
    if stat.S_ISDIR(os.stat(os.path.join(root, name)).st_mode):  # noqa: PTH116, PTH118 - names come from glob, relative to root
        return None
    with _opened(root, name) as (stream, status):
        if status.st_ctime_ns < since_ns - CLOCK_SLACK_NS:
            return None
        digest, size = hashlib.sha256(), 0
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return {"type": "file", "name": os.path.basename(name), "path": name, "size": size, "sha256": digest.hexdigest()}  # noqa: PTH119


def upload_all(found: CollectedArtifacts, root: str, put: Put) -> CollectedArtifacts:
    """Store the files, and add the URI to their references. A file that cannot be stored keeps its reference, and is in
    `skipped` with the reason."""
    names = [reference["name"] for reference in found.references]
    references, skipped = [], list(found.skipped)
    for reference in found.references:
        path, name = reference["path"], reference["name"]
        name = name if names.count(name) == 1 else path.replace("/", "_")
        try:
            with _opened(root, path) as (stream, status):
                references.append({**reference, "name": name, **put(stream, status.st_size, name)})
        except (_NotAnArtifact, OSError, ClientError) as error:
            references.append(reference)
            skipped.append({"path": path, "reason": f"not uploaded: {error}"})
    return CollectedArtifacts(references, skipped)


@contextmanager
def _opened(root: str, name: str) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """The regular file `name` below `root`, open, and its status. Raises _NotAnArtifact and OSError."""
    path = os.path.join(root, name)  # noqa: PTH118
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - opening a device or a pipe can have side effects
        raise _NotAnArtifact("not a regular file")
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _NotAnArtifact("not a regular file")
        _check_inside(root, handle)
        yield stream, status


def _check_name(name: str) -> None:
    try:
        octets = name.encode()
    except UnicodeEncodeError:
        raise _NotAnArtifact("its name is not UTF-8") from None
    if len(octets) > MAX_PATH_BYTES:
        raise _NotAnArtifact(f"its path is longer than {MAX_PATH_BYTES} bytes")


def _check_inside(root: str, handle: int) -> None:
    """Check the path of the open file, so that no link can be replaced between check and use."""
    place = os.readlink(f"/proc/self/fd/{handle}")  # noqa: PTH115 - a link of procfs, not a path to resolve
    top = os.path.realpath(root).rstrip("/") + "/"
    if not place.startswith(top):
        raise _NotAnArtifact("it is outside the folder of the command")
