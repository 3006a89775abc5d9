"""`aghctl artifact put`."""

from __future__ import annotations

import os

from aghbus.cli.arguments import Command, Option, Positional
from aghbus.cli.client import answer_of
from aghbus.cli.errors import YES, UsageError
from aghbus.cli.http1 import ConnectionLost, Response, quote, unreachable
from aghbus.cli.render import safe, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import BufferedReader
    from typing import Any

    from aghbus.cli.context import Context
    from aghbus.cli.http1 import Endpoint

_PIECE = 262_144  # bytes read and sent at a time


def run(context: Context, values: dict[str, Any]) -> int:
    """Send the file as it is; the daemon says what became of it."""
    name = values["name"] or os.path.basename(values["file"])  # noqa: PTH119 - pathlib would double the start-up time
    where = f"/v1/artifacts/{quote(values['work_id'])}/{quote(name)}"
    try:
        with open(values["file"], "rb") as stream:  # noqa: PTH123
            length = os.fstat(stream.fileno()).st_size
            answer = _sent(context.api.endpoint, where, stream, length, context.timeout)
    except IsADirectoryError:
        raise UsageError(f"{values['file']}: is a folder", "pack it into one file first") from None
    except OSError as error:
        raise UsageError(f"{values['file']}: {error.strerror or error}") from None
    context.output.answer(answer, lambda made: f"{safe(made['uri'])}  {size(made['size'])}  {made['digest']}")
    return YES


def _sent(endpoint: Endpoint, where: str, stream: BufferedReader, length: int, timeout: float) -> dict[str, Any]:
    try:
        response = _request(endpoint, where, stream, length, timeout)
        try:
            return answer_of(response)
        finally:
            response.close()
    except (_Broken, ConnectionLost) as error:
        raise unreachable(endpoint, error.__cause__ if isinstance(error, _Broken) else error) from None


class _Broken(Exception):
    """The connection failed; its cause is the OSError, which must not be taken for one of the file's."""


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
        raise _Broken from error
    try:
        try:
            connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
            while length and (piece := stream.read(min(_PIECE, length))):
                connection.sendall(piece)
                length -= len(piece)
        except ConnectionError:
            pass  # refused before the end: the answer says why
        try:
            return Response(connection)
        except OSError as error:
            raise _Broken from error
    except BaseException:
        connection.close()
        raise


COMMANDS = {
    "artifact put": Command(
        run,
        description=(
            "Store a file in the network's object store, as agh://artifacts/WORK_ID/NAME: put that URI into a message. An artifact\n"
            "never changes: the same content again is fine, other content needs another name. Needs JetStream on the broker."
        ),
        examples=[
            "aghctl artifact put work_0199a3 report.xml",
            "aghctl artifact put work_0199a3 /tmp/out.log --name test.log -o json",
        ],
        positionals=[Positional("WORK_ID", "work that it belongs to"), Positional("FILE", "file to store")],
        options=[Option("--name", "name of the artifact (default: that of the file)", "NAME")],
    )
}
