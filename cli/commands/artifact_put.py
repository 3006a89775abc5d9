"""`aghctl artifact put`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from aghbus.cli.app.errors import YES
from aghbus.cli.app.text import safe, size
from aghbus.cli.context import Context
from aghbus.client.api import read_object
from aghbus.client.errors import UsageError
from aghbus.client.http import quote, request
from aghbus.protocol.base.annotations import Any, BinaryIO
from aghbus.store.host.command_line import Argument, Command

_PIECE = 262_144  # bytes that are read and sent at a time


def run(context: Context, values: dict[str, Any]) -> int:
    """Send the file unchanged, and print the artifact's URI, size and digest."""
    name = values["as"] or os.path.basename(values["file"])  # noqa: PTH119 - pathlib would double the start-up time
    where = f"/v1/artifacts/{quote(values['work_id'])}/{quote(name)}"
    try:
        with open(values["file"], "rb") as stream:  # noqa: PTH123
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{values['file']}: is not a regular file", "write it to a file first")
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(status.st_size)}
            body = _pieces(stream, status.st_size)
            answer = read_object(request(context.api.endpoint, "PUT", where, body, headers, context.timeout))
    except OSError as error:
        raise UsageError(f"{values['file']}: {error.strerror or error}") from None
    context.output.answer(answer, lambda made: f"{safe(made['uri'])}  {size(made['size'])}  {made['digest']}")
    return YES


def _pieces(stream: BinaryIO, length: int) -> Iterator[bytes]:
    """Exactly `length` bytes of the file, less if it became shorter."""
    while length and (piece := stream.read(min(_PIECE, length))):
        yield piece
        length -= len(piece)


COMMANDS = {
    "artifact put": Command(
        run,
        description=(
            "Store a file in the network's object store, as agh://artifacts/WORK_ID/NAME: put that URI into a message.\n"
            "An artifact never changes: the same content again is fine, other content needs another name. Needs JetStream."
        ),
        examples=[
            "aghctl artifact put work_0199a3 report.xml",
            "aghctl artifact put work_0199a3 /tmp/out.log --as test.log -o json",
        ],
        arguments=[
            Argument("work_id", help="work of the artifact"),
            Argument("file", help="file to store"),
            Argument("--as", metavar="NAME", help="name of the artifact (default: that of the file)"),
        ],
    )
}
