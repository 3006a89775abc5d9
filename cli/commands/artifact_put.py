"""`aghctl artifact put`."""

from __future__ import annotations

import os
import stat
from io import BufferedReader

from aghbus.cli.app.errors import YES
from aghbus.cli.app.text import safe, size
from aghbus.cli.context import Context
from aghbus.client.api import read_object
from aghbus.client.errors import UsageError
from aghbus.client.http import ConnectionLost, Endpoint, Response, quote, unreachable
from aghbus.protocol.base.annotations import Any
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
            answer = _sent(context.api.endpoint, where, stream, status.st_size, context.timeout)
    except OSError as error:
        raise UsageError(f"{values['file']}: {error.strerror or error}") from None
    context.output.answer(answer, lambda made: f"{safe(made['uri'])}  {size(made['size'])}  {made['digest']}")
    return YES


def _sent(endpoint: Endpoint, where: str, stream: BufferedReader, length: int, timeout: float) -> dict[str, Any]:
    try:
        response = _request(endpoint, where, stream, length, timeout)
        try:
            return read_object(response)
        finally:
            response.close()
    except ConnectionLost as error:
        raise unreachable(endpoint, error) from None
    except _ConnectionFailed as error:
        raise unreachable(endpoint, error.cause) from None


class _ConnectionFailed(Exception):
    """The connection failed with an OSError; it must not be taken for one of the file."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _request(endpoint: Endpoint, where: str, stream: BufferedReader, length: int, timeout: float) -> Response:
    """PUT exactly `length` bytes of the file, and read the head of the answer, which may come before the end."""
    lines = [
        f"PUT {where} HTTP/1.1",
        f"Host: {endpoint.host or 'localhost'}{f':{endpoint.port}' * bool(endpoint.host)}",
    ]
    lines += ["Connection: close", "Content-Type: application/octet-stream", f"Content-Length: {length}"]
    lines += [f"Authorization: Bearer {endpoint.token}"] if endpoint.token else []
    try:
        connection = endpoint.connect(timeout)
    except OSError as error:
        raise _ConnectionFailed(error) from None
    try:
        try:
            connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
            while length and (piece := stream.read(min(_PIECE, length))):
                connection.sendall(piece)
                length -= len(piece)
        except ConnectionError:
            pass  # refused before the end: the response has the reason
        try:
            return Response(connection)
        except OSError as error:
            raise _ConnectionFailed(error) from None
    except BaseException:
        connection.close()
        raise


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
