"""Files that a message refers to: they go to the network's object store, and the reference carries their URI and digest."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from aghbus.cli.app.options import LocalFile
from aghbus.client.api import Api, read_object
from aghbus.client.errors import UsageError
from aghbus.client.http import quote, request
from aghbus.protocol.api.artifact_uri import PART_RULE, is_part
from aghbus.protocol.base.annotations import Any, BinaryIO

_PIECE = 262_144  # bytes that are read and sent at a time


def upload(api: Api, work_id: str, path: str, name: str) -> dict[str, Any]:
    """Store the file at `path`, as `put` does. Raises UsageError too."""
    try:
        with open(path, "rb") as stream:  # noqa: PTH123
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{path}: is not a regular file", "write it to a file first")
            return put(api, work_id, stream, status.st_size, name)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def put(api: Api, work_id: str, stream: BinaryIO, length: int, name: str) -> dict[str, Any]:
    """Store `length` bytes of an open file as `name` of a work; the answer (`Artifact`). Raises ClientError and OSError."""
    where = f"/v1/artifacts/{quote(work_id)}/{quote(name)}"
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(length)}
    return read_object(request(api.endpoint, "PUT", where, _pieces(stream, length), headers, api.timeout))


def references(api: Api, work_id: str, given: list[dict[str, Any] | LocalFile]) -> list[dict[str, Any]]:
    """The references of a message: those given as they are, and one to each file, which is uploaded below `work_id`."""
    for entry in given:
        if isinstance(entry, LocalFile) and not os.path.exists(entry):  # noqa: PTH110 - pathlib would double the start-up time
            hint = "name an existing file, a URI such as https://… or agh://artifacts/WORK_ID/NAME, or a JSON object"
            raise UsageError(f"--artifact: there is no file {entry}", hint)
    return [_reference(api, work_id, entry) if isinstance(entry, LocalFile) else entry for entry in given]


def place_of(prefix: str, message_id: str | None) -> str:
    """An id `PREFIXHEX` below which files are stored: random, or the same one each time for a message id that the user chose."""
    if message_id is None:
        return prefix + os.urandom(16).hex()
    import hashlib

    return prefix + hashlib.sha256(message_id.encode()).hexdigest()[:32]


def _reference(api: Api, work_id: str, path: str) -> dict[str, Any]:
    name = os.path.basename(path)  # noqa: PTH119 - pathlib would double the start-up time
    if not is_part(name):
        hint = f"upload it under another name: `aghctl artifact put {work_id} FILE --as NAME`"
        raise UsageError(f"--artifact: the name of {path} must be {PART_RULE}", hint)
    stored = upload(api, work_id, path, name)
    return {"type": "file", "name": name, **content_of(stored)}


def content_of(stored: dict[str, Any]) -> dict[str, Any]:
    """The members of a reference that name the content of a stored artifact: `uri`, `size` and `sha256`."""
    return {"uri": stored["uri"], "size": stored["size"], "sha256": stored["digest"].removeprefix("sha256:")}


def _pieces(stream: BinaryIO, length: int) -> Iterator[bytes]:
    """Exactly `length` bytes of the file, less if it became shorter."""
    while length and (piece := stream.read(min(_PIECE, length))):
        yield piece
        length -= len(piece)
