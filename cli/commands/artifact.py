"""`aghctl artifact put`, `get` and `list`."""

from __future__ import annotations

import os
import stat
import sys

from aghbus.cli.app.completers import works
from aghbus.cli.app.errors import YES
from aghbus.cli.app.options import LIMIT
from aghbus.cli.app.text import safe, size, table
from aghbus.cli.app.uploads import upload
from aghbus.cli.context import Context
from aghbus.cli.ids import whole_work
from aghbus.client.api import read_object
from aghbus.client.errors import ConnectionLost, Unexpected, UsageError
from aghbus.client.http import Incoming, iterate, quote, request
from aghbus.host.command_line import Argument, Command
from aghbus.host.stdio import output_error
from aghbus.protocol.api.artifact_uri import PART_RULE, URI_PREFIX, is_part, parse_uri
from aghbus.protocol.base.annotations import Any


def run_put(context: Context, values: dict[str, Any]) -> int:
    """Send the file unchanged, and print the artifact's URI, size and digest."""
    name = values["as"] or os.path.basename(values["file"])  # noqa: PTH119 - pathlib would double the start-up time
    answer = upload(context.api, values["work_id"], values["file"], name)
    context.output.answer(answer, lambda made: f"{safe(made['uri'])}  {size(made['size'])}  {made['digest']}")
    return YES


def run_get(context: Context, values: dict[str, Any]) -> int:
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
        context.output.note(_line(made))
    else:
        context.output.answer(made, _line)
    return YES


def _line(made: dict[str, Any]) -> str:
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
    """Whether `path` exists and is not a regular file: a device, a pipe, a link. It must not be replaced."""
    return os.path.exists(path) and not stat.S_ISREG(os.lstat(path).st_mode)  # noqa: PTH110 - pathlib is slow to load


def _written_into(response: Incoming, target: str) -> dict[str, Any]:
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


def _printed(response: Incoming) -> dict[str, Any]:
    try:
        return _poured(response, "standard output", sys.stdout.buffer)
    except OSError as error:
        raise output_error(error) from None


def _poured(response: Incoming, name: str, stream: Any) -> dict[str, Any]:
    digest, length = _copied(response, stream)
    stream.flush()
    return {"file": name, "size": length, "digest": digest}


def _saved(response: Incoming, target: str, *, replace: bool) -> dict[str, Any]:
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


def _copied(response: Incoming, stream: Any) -> tuple[str, int]:
    """Copy the body to `stream`; its digest and length, which must match the response headers."""
    import hashlib

    seen, length = hashlib.sha256(), 0
    for piece in iterate(response.pieces()):
        stream.write(piece)
        seen.update(piece)
        length += len(piece)
    digest = f"sha256:{seen.hexdigest()}"
    if (digest, str(length)) != (response.headers.get("artifact-digest"), response.headers.get("artifact-size")):
        raise Unexpected("the content does not match its digest", "try again, or ask for it to be stored again")
    return digest, length


def run_list(context: Context, values: dict[str, Any]) -> int:
    """List the artifacts in the object store."""
    answer = context.api.get("/v1/artifacts", [("work", values["work_id"]), ("limit", values["limit"])])
    context.output.rows(answer, "artifacts", _list, "no artifact")
    if answer["more"]:
        context.output.note("there are more: raise --limit, or name a work")
    return YES


def _list(answer: dict[str, Any]) -> str:
    rows = [(row["uri"], size(row["size"]), row["put_by"], row["digest"]) for row in answer["artifacts"]]
    return table(["URI", "SIZE", "PUT BY", "DIGEST"], rows)


COMMANDS = {
    "artifact put": Command(
        run_put,
        description=(
            "Store a file in the network's object store, as agh://artifacts/WORK_ID/NAME: put that URI into a message.\n"
            "An artifact never changes: the same content again is fine, other content needs another name. Needs JetStream."
        ),
        examples=[
            "aghctl artifact put work_0199a3 report.xml",
            "aghctl artifact put work_0199a3 /tmp/out.log --as test.log -o json",
        ],
        arguments=[
            Argument("work_id", completer=works, resolve=whole_work, help="work of the artifact"),
            Argument("file", help="file to store"),
            Argument("--as", metavar="NAME", help="name of the artifact (default: that of the file)"),
        ],
    ),
    "artifact get": Command(
        run_get,
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
            Argument("work_id", completer=works, resolve=whole_work, help="work of the artifact, or the whole URI"),
            Argument("artifact_name", nargs="?", help="name of the artifact"),
            Argument("-O", "--output-file", metavar="FILE", help="file to write or replace; - is standard output"),
        ],
    ),
    "artifact list": Command(
        run_list,
        description="List the artifacts of one work, or of all works, by URI. PUT BY is the claim of the storing daemon.",
        examples=["aghctl artifact list work_0199a3", "aghctl artifact list -o jsonl"],
        arguments=[
            Argument("work_id", nargs="?", completer=works, resolve=whole_work, help="only those of this work"),
            LIMIT,
        ],
    ),
}
