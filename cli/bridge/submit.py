"""Submits the lines of standard input: each is a message of our agent (docs/adapters/README.md)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator

from aghbus.cli.app.findings import print_findings
from aghbus.cli.app.input import quoted_text
from aghbus.cli.app.message_text import TERMINAL
from aghbus.cli.app.output import Output
from aghbus.cli.app.recipients import note_absent, presence_of
from aghbus.cli.bridge.deliver import post_with_retry
from aghbus.cli.bridge.pending import UnansweredWorks, reports_on_work
from aghbus.client.api import Api
from aghbus.client.errors import ClientError, RefusedByDaemon
from aghbus.client.http import quote
from aghbus.protocol.base.annotations import Any

MAX_LINE_BYTES = 8 << 20
"""Longest line: the daemon's limit of 4 MiB for a message, written as a JSON string."""
REQUEST_FIELDS = ("message", "text", "target", "work_id", "key", "channel")
"""Fields of a line with `--meta`: those of the API's `BridgeSubmitRequest`."""
_READ_BYTES = 65_536
_NO_ANSWER_RULES = frozenset({"work_closed", "unknown_work", "not_our_work"})
"""Rules and error codes that mean that a work accepts no (further) answer from this peer."""


def read_lines(handle: int) -> Iterator[bytes]:
    """The lines of a file descriptor, without line feeds. Blank lines are skipped; too long ones are truncated (not valid JSON).

    `sys.stdin` is not used: a thread that blocks in its buffer would delay the exit of the process.
    """
    rest = b""
    while data := os.read(handle, _READ_BYTES):
        *whole, rest = (rest + data).split(b"\n")
        rest = rest[:MAX_LINE_BYTES]
        yield from (line for line in whole if line.strip())
    if rest.strip():
        yield rest


class LineSubmitter:
    """Submits lines in order. `defaults` are fields of every request; `refused` says whether any line was refused.

    In formats whose messages do not identify their work, a line without a work id answers the only unanswered work.
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
        self._noted: set[str] = set()
        self.refused = False

    def run(self, lines: Iterator[bytes], on_sent: Callable[[int, dict[str, Any]], None]) -> None:
        """Submit until the input ends; `on_sent` gets the number of each accepted line, and the response.

        Raises Unreachable when the daemon stays unreachable.
        """
        for number, raw in enumerate(lines, 1):
            try:
                answer = self._submit({**self._defaults, **self._request(raw)})
            except _BadLine as error:
                self._refuse(number, [error.finding])
            except RefusedByDaemon as error:
                whole = {"path": "", "rule": error.code, "severity": "error", "message": error.message}
                self._refuse(number, error.answer.get("findings") or [whole])
            else:
                print_findings(self._output, "line", number, answer["findings"])
                self._note_absent(answer["sent"])
                on_sent(number, answer)

    def _note_absent(self, sent: list[dict[str, Any]]) -> None:
        """Print a note about each receiver that is not there, once."""
        for one in sent:
            if self._output.human and one["to"] not in (None, *self._noted):
                self._noted.add(one["to"])
                note_absent(self._api, self._output, {**one, "recipient": presence_of(self._api, one["to"])})

    def _submit(self, request: dict[str, Any]) -> dict[str, Any]:
        """The daemon's response. Raises _BadLine when several works are unanswered."""
        pending = None
        if request.get("work_id") is None and reports_on_work(self._format, request):
            pending = self._pending_work(request)
        if pending is not None:
            request = {**request, "channel": pending[0], "work_id": pending[1]}
        try:
            answer = post_with_retry(self._api, f"/v1/bridge/{self._format}", request)
        except RefusedByDaemon as error:
            rules = {finding["rule"] for finding in error.answer.get("findings") or []}
            if pending is not None and not _NO_ANSWER_RULES.isdisjoint({error.code, *rules}):
                self._printed.forget(*pending)
            raise
        for sent in answer["sent"]:
            self._printed.forget(sent["channel"], sent["work_id"])
        return answer

    def _pending_work(self, request: dict[str, Any]) -> tuple[str, str] | None:
        """The channel and id of the only unanswered work; None when there is none.

        Works that have ended count too: the agent may have written the line before. They are removed after the refusal.
        """
        waiting = self._printed.waiting(request.get("channel"))
        if len(waiting) <= 1:
            return waiting[0] if waiting else None
        for channel, work_id in waiting:
            if self._has_ended(channel, work_id):
                self._printed.forget(channel, work_id)
        names = ", ".join(work_id for _, work_id in waiting[:5])
        why = f"{len(waiting)} works are unanswered ({names}): name one with --meta and work_id"
        raise _BadLine("ambiguous_work", why)

    def _has_ended(self, channel: str, work_id: str) -> bool:
        try:
            detail = self._api.get(f"/v1/works/{quote(work_id)}", [("channel", channel)])
        except ClientError as error:
            return isinstance(error, RefusedByDaemon) and error.code == "not_found"
        return detail["work"]["state"] in TERMINAL

    def _refuse(self, number: int, findings: list[dict[str, Any]]) -> None:
        self.refused = True
        print_findings(self._output, "line", number, findings)

    def _request(self, raw: bytes) -> dict[str, Any]:
        """The request fields of a line. Raises _BadLine."""
        try:
            text = raw.decode("utf-8", "replace" if self._format == "sacp" and not self._meta else "strict")
        except UnicodeDecodeError as error:
            raise _BadLine("not_utf8", f"is not UTF-8 at byte {error.start}") from None
        if self._meta:
            return _meta(text)
        quoted = quoted_text(text) if self._format == "sacp" else None
        return {"text": text if quoted is None else quoted.encode(errors="replace").decode()}


class _BadLine(Exception):
    """A line that cannot be submitted."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.finding = {"path": "", "rule": rule, "severity": "error", "message": message}


def _meta(text: str) -> dict[str, Any]:
    try:
        members = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict) or ("message" in members) == ("text" in members):
        raise _BadLine("meta", "must be a JSON object with `message` or `text`")
    unknown = [name for name in members if name not in REQUEST_FIELDS]
    if unknown:
        raise _BadLine("meta", f"has the unknown field {unknown[0]!r}; allowed are {', '.join(REQUEST_FIELDS)}")
    return members


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _BadLine("duplicate_key", f"has the key {twice!r} twice")
    return made


def _constant(text: str) -> Any:
    raise _BadLine("not_finite", f"contains {text}, which is not JSON")
