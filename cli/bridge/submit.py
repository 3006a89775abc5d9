"""From standard input to the bus: each line is a message of our agent, handed over to the daemon (docs/adapters/README.md)."""

from __future__ import annotations

import json
import os

from aghbus.cli.app.message_text import TERMINAL
from aghbus.cli.bridge.deliver import post_with_retry
from aghbus.cli.bridge.findings import print_findings
from aghbus.cli.bridge.pending import reports
from aghbus.client.errors import ClientError, RefusedByDaemon
from aghbus.client.http import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from aghbus.cli.app.output import Output
    from aghbus.cli.bridge.pending import UnansweredWorks
    from aghbus.client.api import Api

MAX_LINE_BYTES = 8 << 20
"""Longest line that is held: what the daemon takes of one message, 4 MiB, written as a JSON string."""
META = ("message", "text", "target", "work_id", "key", "channel")
"""Members of a line with `--meta`: those of the API's `BridgeSubmitRequest`."""
_READ_BYTES = 65_536
_OVER = frozenset({"work_closed", "unknown_work", "not_our_work"})
"""Rules and codes that say that a work takes no answer of ours any more."""


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


class LineSubmitter:
    """Hands lines over, in order. `defaults` are members of every ask; `refused` says whether any line was refused.

    A line that names no work, in a format whose messages do not tell, answers the only one that was `printed` and waits for
    an answer.
    """

    def __init__(
        self, api: Api, format: str, defaults: dict[str, Any], output: Output, printed: UnansweredWorks, *, meta: bool
    ) -> None:
        self._api = api
        self._format = format
        self._defaults = defaults
        self._output = output
        self._printed = printed
        self._meta = meta
        self.refused = False

    def run(self, lines: Iterator[bytes], on_sent: Callable[[int, dict[str, Any]], None]) -> None:
        """Until the input ends; `on_sent` gets the number of each line that was taken, and the answer.

        Raises Unreachable when the daemon stays away.
        """
        for number, raw in enumerate(lines, 1):
            try:
                answer = self._hand_over({**self._defaults, **self._ask(raw)})
            except _BadLine as error:
                self._tell(number, [error.finding])
            except RefusedByDaemon as error:
                whole = {"path": "", "rule": error.code, "severity": "error", "message": error.message}
                self._tell(number, error.answer.get("findings") or [whole])
            else:
                print_findings(self._output, "line", number, answer["findings"])
                on_sent(number, answer)

    def _hand_over(self, ask: dict[str, Any]) -> dict[str, Any]:
        """The daemon's answer. Raises _BadLine when several works may be meant."""
        meant = None if ask.get("work_id") is not None or not reports(self._format, ask) else self._meant(ask)
        if meant is not None:
            ask = {**ask, "channel": meant[0], "work_id": meant[1]}
        try:
            answer = post_with_retry(self._api, f"/v1/bridge/{self._format}", ask)
        except RefusedByDaemon as error:
            rules = {finding["rule"] for finding in error.answer.get("findings") or []}
            if meant is not None and not _OVER.isdisjoint({error.code, *rules}):
                self._printed.forget(*meant)
            raise
        for sent in answer["sent"]:
            self._printed.forget(sent["channel"], sent["work_id"])
        return answer

    def _meant(self, ask: dict[str, Any]) -> tuple[str, str] | None:
        """The channel and id of the only work that waits for an answer; None when none does.

        Works that have ended are in question too: the line may be what our agent wrote before it could know. The line that is
        refused for them is taken for that, and they are for no further one.
        """
        waiting = self._printed.waiting(ask.get("channel"))
        if len(waiting) <= 1:
            return waiting[0] if waiting else None
        for channel, work_id in waiting:
            if self._has_ended(channel, work_id):
                self._printed.forget(channel, work_id)
        names = ", ".join(work_id for _, work_id in waiting[:5])
        why = f"{len(waiting)} works wait for an answer ({names}): name the one that this is for, by --meta and work_id"
        raise _BadLine("ambiguous_work", why)

    def _has_ended(self, channel: str, work_id: str) -> bool:
        try:
            detail = self._api.get(f"/v1/works/{quote(work_id)}", [("channel", channel)])
        except ClientError as error:
            return isinstance(error, RefusedByDaemon) and error.code == "not_found"
        return detail["work"]["state"] in TERMINAL

    def _tell(self, number: int, findings: list[dict[str, Any]]) -> None:
        self.refused = True
        print_findings(self._output, "line", number, findings)

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
        members = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict) or ("message" in members) == ("text" in members):
        raise _BadLine("meta", "must be a JSON object with `message` or `text`")
    unknown = [name for name in members if name not in META]
    if unknown:
        raise _BadLine("meta", f"has no member {unknown[0]!r}: it may have {', '.join(META)}")
    return members


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _BadLine("duplicate_key", f"has the key {twice!r} twice")
    return made


def _constant(text: str) -> Any:
    raise _BadLine("not_finite", f"holds {text}, which is not JSON")
