"""From standard input to the bus: each line is a message of our agent, handed over to the daemon (docs/adapters/README.md)."""

from __future__ import annotations

import json
import os

from aghbus.cli.bridge_findings import tell
from aghbus.cli.bridge_out import persist
from aghbus.cli.errors import RefusedByDaemon

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from aghbus.cli.client import Api
    from aghbus.cli.output import Output

MAX_LINE_BYTES = 8 << 20
"""Longest line that is held: what the daemon takes of one message, 4 MiB, written as a JSON string."""
META = ("message", "text", "target", "work_id", "key", "channel")
"""Members of a line with `--meta`: those of the API's `HandOverAsk`."""
_READ_BYTES = 65_536


def read_lines(handle: int) -> Iterator[bytes]:
    """The lines behind a file descriptor, without line feeds; blank ones are skipped, too long ones cut (they are no JSON then).

    Not through `sys.stdin`: a thread that waits in its buffer cannot be left behind when the process ends.
    """
    rest = b""
    while data := os.read(handle, _READ_BYTES):
        *whole, rest = (rest + data).split(b"\n")
        rest = rest[:MAX_LINE_BYTES]
        yield from (line for line in whole if line.strip())
    if rest.strip():
        yield rest


class Inward:
    """Hands lines over, in order. `defaults` are members of every ask; `refused` says whether any line was refused."""

    def __init__(self, api: Api, format: str, defaults: dict[str, Any], output: Output, *, meta: bool) -> None:
        self._api = api
        self._format = format
        self._defaults = defaults
        self._output = output
        self._meta = meta
        self.refused = False

    def run(self, lines: Iterator[bytes], on_sent: Callable[[int, dict[str, Any]], None]) -> None:
        """Until the input ends; `on_sent` gets the number of each line that was taken, and the answer.

        Raises Unreachable when the daemon stays away.
        """
        for number, raw in enumerate(lines, 1):
            try:
                answer = persist(self._api, f"/v1/bridge/{self._format}", {**self._defaults, **self._ask(raw)})
            except _BadLine as error:
                self._tell(number, [error.finding])
            except RefusedByDaemon as error:
                whole = {"path": "", "rule": error.code, "severity": "error", "message": error.message}
                self._tell(number, error.answer.get("findings") or [whole])
            else:
                tell(self._output, "line", number, answer["findings"])
                on_sent(number, answer)

    def _tell(self, number: int, findings: list[dict[str, Any]]) -> None:
        self.refused = True
        tell(self._output, "line", number, findings)

    def _ask(self, raw: bytes) -> dict[str, Any]:
        """The members of the ask that the line itself says. Raises _BadLine."""
        try:
            text = raw.decode("utf-8", "replace" if self._format == "sacp" and not self._meta else "strict")
        except UnicodeDecodeError as error:
            raise _BadLine("not_utf8", f"is not UTF-8 at byte {error.start}") from None
        if self._meta:
            return _meta(text)
        return {"text": raw_text(text) if self._format == "sacp" else text}


class _BadLine(Exception):
    """A line that cannot be asked about."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.finding = {"path": "", "rule": rule, "severity": "error", "message": message}


def raw_text(line: str) -> str:
    """What an agent of SACP wrote: a line that is a JSON string stands for its text, which may have several lines."""
    if not line.lstrip().startswith('"'):
        return line
    try:
        text = json.loads(line)
    except (ValueError, RecursionError):
        return line
    return text.encode(errors="replace").decode() if isinstance(text, str) else line


def _meta(text: str) -> dict[str, Any]:
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict) or ("message" in members) == ("text" in members):
        raise _BadLine("meta", "must be a JSON object with `message` or `text`")
    unknown = [name for name in members if name not in META]
    if unknown:
        raise _BadLine("meta", f"has no member {unknown[0]!r}: it may have {', '.join(META)}")
    return members
