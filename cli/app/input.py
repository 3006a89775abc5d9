"""Input of the offline commands: a file or standard input, as bytes, in lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

from aghbus.cli.app.arguments import whole
from aghbus.cli.app.text import size
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument
from aghbus.protocol.base.annotations import BinaryIO

FILE = Argument("file", nargs="?", help="file to read; - or nothing reads standard input")
NOW = Argument("--now", metavar="UNIX", type=whole, help="check freshness at this time, in Unix seconds (default: now)")


def opened(path: str | None) -> BinaryIO:
    """The file at `path` in binary, or standard input for `-` and None. Raises UsageError when it cannot be read."""
    if path in (None, "-"):
        return sys.stdin.buffer
    assert path is not None
    try:
        return open(path, "rb")  # noqa: PTH123 - pathlib is slow to load; the process ends with the file
    except OSError as error:
        raise UsageError(f"FILE: {path} cannot be read: {error.strerror}") from None


def read_all(path: str | None, limit: int, argument: str = "FILE") -> bytes:
    """The content of a file of at most `limit` bytes; `argument` names it in the UsageError."""
    stream = opened(path)
    try:
        content = stream.read(limit + 1)
    except OSError as error:
        raise UsageError(f"{argument}: {path} cannot be read: {error.strerror}") from None
    finally:
        if stream is not sys.stdin.buffer:
            stream.close()
    if len(content) > limit:
        raise UsageError(f"{argument}: {path} is larger than {size(limit)}")
    return content


def lines(path: str | None) -> Iterator[bytes]:
    """The lines of a file, split at line feeds only, without the line feed; blank ones are skipped."""
    stream = opened(path)
    try:
        while line := stream.readline():
            if line.strip():
                yield line.removesuffix(b"\n")
    except OSError as error:
        raise UsageError(f"FILE: {path} cannot be read: {error.strerror}") from None
    finally:
        if stream is not sys.stdin.buffer:
            stream.close()


def quoted_text(line: str | bytes) -> str | None:
    """The text in a line of a SACP agent that is a JSON string; None for any other line, which is the text itself."""
    try:
        text = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(text, str) else None


def clock(now: int | None) -> int:
    """The Unix time, in seconds, to check freshness against."""
    return int(time.time()) if now is None else now
