"""`aghctl artifact get`."""

from __future__ import annotations

import os
import stat
import sys

from aghbus.cli.app.errors import YES
from aghbus.cli.app.text import safe, size
from aghbus.cli.context import Context
from aghbus.client.api import read_object
from aghbus.client.errors import ConnectionLost, Unexpected, UsageError
from aghbus.client.http import Response, quote, request
from aghbus.protocol.api.artifact_uri import PART_RULE, URI_PREFIX, is_part, parse_uri
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Argument, Command
from aghbus.store.host.stdio import output_error


def run(context: Context, values: dict[str, Any]) -> int:
    """Fetch into a temporary file in the target's folder, check size and digest, then rename it."""
    work_id, name = _which(values["work_id"], values["artifact_name"])
    target = values["output_file"] or name
    to_stdout = values["output_file"] == "-"
    if not values["output_file"] and os.path.lexists(target):
        raise UsageError(f"{target}: exists in this folder", "name the file with -O to replace it")
    where = f"/v1/artifacts/{quote(work_id)}/{quote(name)}"
    response = request(context.api.endpoint, "GET", where, (), {}, context.timeout)
    try:
        if response.status != 200:
            read_object(response)
        if to_stdout:
            made = _printed(response)
        elif values["output_file"] and _is_special(target):
            made = _written_into(response, target)
        else:
            made = _saved(response, target, replace=bool(values["output_file"]))
    except ConnectionLost:
        raise Unexpected(
            "the content ended early", "it does not match its digest, or the daemon stopped: try again"
        ) from None
    finally:
        response.close()
    if to_stdout:
        context.output.note(_human(made))
    else:
        context.output.answer(made, _human)
    return YES


def _human(made: dict[str, Any]) -> str:
    return f"{safe(made['file'])}  {size(made['size'])}  {made['digest']}"


def _which(first: str, second: str | None) -> tuple[str, str]:
    if second is None:
        parts = parse_uri(first)
        if parts is None:
            raise UsageError(f"{first}: must be {URI_PREFIX}WORK_ID/NAME, or a work id and a name")
        return parts
    for text in (first, second):
        if not is_part(text):
            raise UsageError(f"{text}: must be {PART_RULE}")
    return first, second


def _is_special(path: str) -> bool:
    """Whether `path` exists and is no regular file: a device, a pipe, a link. It must not be replaced."""
    return os.path.exists(path) and not stat.S_ISREG(os.lstat(path).st_mode)  # noqa: PTH110 - pathlib is slow to load


def _written_into(response: Response, target: str) -> dict[str, Any]:
    """Write the body into the existing file at `target`, without replacing it."""
    try:
        handle = os.open(target, os.O_WRONLY | os.O_TRUNC | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(handle, "wb") as stream:
            made = _poured(response, target, stream)
            if stat.S_ISREG(os.fstat(handle).st_mode):
                os.fsync(handle)
    except OSError as error:
        raise UsageError(f"{target}: {error.strerror or error}") from None
    return made


def _printed(response: Response) -> dict[str, Any]:
    try:
        return _poured(response, "standard output", sys.stdout.buffer)
    except OSError as error:
        raise output_error(error) from None


def _poured(response: Response, name: str, stream: Any) -> dict[str, Any]:
    digest, length = _copied(response, stream)
    stream.flush()
    return {"file": name, "size": length, "digest": digest}


def _saved(response: Response, target: str, *, replace: bool) -> dict[str, Any]:
    """Write the body to a new file at `target`; an existing file is overwritten only if `replace`."""
    temporary = f"{target}.{os.getpid()}.part"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(handle, "wb") as stream:
                made = _poured(response, target, stream)
                os.fsync(handle)
            if replace:
                os.replace(temporary, target)  # noqa: PTH105 - pathlib would double the start-up time
            else:
                os.link(temporary, target)  # fails, unlike a rename, when there is a file of that name
        finally:
            if os.path.lexists(temporary):
                os.unlink(temporary)  # noqa: PTH108
    except FileExistsError as error:
        raise UsageError(f"{error.filename2 or error.filename}: exists", "name another file with -O") from None
    except OSError as error:
        raise UsageError(f"{target}: {error.strerror or error}") from None
    return made


def _copied(response: Response, stream: Any) -> tuple[str, int]:
    """Copy the body to `stream`; its digest and length, which must match the response headers."""
    import hashlib

    seen, length = hashlib.sha256(), 0
    for piece in response.pieces():
        stream.write(piece)
        seen.update(piece)
        length += len(piece)
    digest = f"sha256:{seen.hexdigest()}"
    if (digest, str(length)) != (response.headers.get("artifact-digest"), response.headers.get("artifact-size")):
        raise Unexpected("the content does not match its digest", "try again, or ask for it to be stored again")
    return digest, length


COMMANDS = {
    "artifact get": Command(
        run,
        description=(
            "Fetch an artifact, by its URI or by work and name, into a file of its name in the current folder. Size and\n"
            "SHA-256 are checked before the file gets that name; an existing file is replaced only if -O names it. If FILE is a\n"
            "pipe, a device or a link, the content is written into it, and checked at the end."
        ),
        examples=[
            "aghctl artifact get agh://artifacts/work_0199a3/report.xml",
            "aghctl artifact get work_0199a3 report.xml -O /tmp/report.xml",
        ],
        arguments=[
            Argument("work_id", help="work of the artifact, or the whole URI"),
            Argument("artifact_name", nargs="?", help="name of the artifact"),
            Argument(
                "-O", "--output-file", metavar="FILE", help="file to write, replaced if it exists; - is standard output"
            ),
        ],
    )
}
