"""`--watch`: a list that is shown again when it changes, until Ctrl-C."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection

from aghbus.cli.app.output import is_terminal
from aghbus.cli.app.text import plain, safe, width
from aghbus.cli.context import Context
from aghbus.client.api import Retry
from aghbus.client.errors import ClientError, Unreachable
from aghbus.client.events import messages, subscribe
from aghbus.client.http import Incoming, iterate
from aghbus.host.command_line import Argument
from aghbus.host.stdio import flush, write
from aghbus.protocol.base.annotations import Any, NoReturn

WATCH = Argument("-w", "--watch", action="store_true", help="show it again when it changes, until Ctrl-C")
LEAST_SECONDS = 1.0
"""Between two looks."""
POLL_SECONDS = 2.0
"""After which the daemon is asked again without an event: ages pass, and presence and acknowledgements are no events."""

Answer = dict[str, Any]
Rows = Callable[[Answer], dict[object, Answer]]
"""The rows of an answer, each by what identifies it."""


def watch(
    context: Context,
    read: Callable[[], Answer],
    human: Callable[[Answer], str],
    rows: Rows,
    *,
    volatile: Collection[str] = (),
) -> NoReturn:
    """Show what `read` answers, and again after every change of its `rows`; changes of their members `volatile` do not count.

    On a terminal the picture is drawn anew. Elsewhere the whole text follows after an empty line, and in JSON each row that
    is new or has changed, or once more with `removed` when it is gone. While the daemon is away, it is tried for `--timeout`
    seconds; then Unreachable is raised.
    """
    view = _View(context, human, rows, volatile)
    try:
        _follow(context, read, view)
    except KeyboardInterrupt:
        view.leave()
        raise


def _follow(context: Context, read: Callable[[], Answer], view: _View) -> NoReturn:
    retry: Retry | None = None  # before the first answer, an error ends the command
    while True:
        try:
            stream = subscribe(context.api, (), POLL_SECONDS)  # first: an event after the answer counts
            try:
                view.show(read())
                retry = Retry(context.timeout)
                _await_event(stream)
            finally:
                stream.close()
        except ClientError as error:
            if retry is None:
                raise
            if not retry.has_failed:
                context.output.note(f"({safe(error.message)}; trying again for up to {context.timeout:.0f} s)")
            retry.pause(error)


def _await_event(stream: Incoming) -> None:
    """Return after the next event, after POLL_SECONDS without one, or when the stream ends; not before LEAST_SECONDS."""
    began = time.monotonic()
    try:  # noqa: SIM105 - contextlib is slow to load
        next(messages(iterate(stream.pieces())), None)
    except Unreachable:
        pass  # no event in time, or the daemon stops: the next request tells
    time.sleep(max(0.0, began + LEAST_SECONDS - time.monotonic()))


class _View:
    """What was shown last."""

    def __init__(self, context: Context, human: Callable[[Answer], str], rows: Rows, volatile: Collection[str]) -> None:
        self._output = context.output
        self._human = human
        self._rows = rows
        self._volatile = volatile
        self._shown: dict[object, Answer] | None = None
        self._is_screen = context.output.human and is_terminal(1, context.env)

    def show(self, answer: Answer) -> None:
        """Show the answer, as far as it differs from the one before."""
        rows, before = self._rows(answer), self._shown or {}
        changed = [row for key, row in rows.items() if self._essence(row) != self._essence(before.get(key))]
        gone = [row for key, row in before.items() if key not in rows]
        if self._is_screen:
            self._draw(self._output.colored(self._human(answer), 1))
        elif not self._output.human:
            for row in [*changed, *({**row, "removed": True} for row in gone)]:
                self._output.event(row, str)
        elif changed or gone or self._shown is None:
            self._output.text(("" if self._shown is None else "\n") + self._human(answer))
            flush()
        self._shown = rows

    def _essence(self, row: Answer | None) -> Answer | None:
        return row and {name: value for name, value in row.items() if name not in self._volatile}

    def _draw(self, text: str) -> None:
        """Write `text` over the picture before, line by line, so that nothing flickers and no mode of the terminal changes."""
        size = os.get_terminal_size(1)
        if self._shown is None:
            write("\n" * (size.lines - 1))  # what is on the screen moves up, and stays
        lines = _fitting(text.split("\n"), size.lines - 1, size.columns)
        write(f"\x1b[H{''.join(_overwriting(line, size.columns) for line in lines)}\x1b[J")
        flush()

    def leave(self) -> None:
        """End the line in which the terminal shows what ended the command."""
        if self._is_screen:
            write("\n")


def _overwriting(line: str, columns: int) -> str:
    """The line, and the end of its last row erased; a full row has no end, and erasing would take its last character."""
    size = width(plain(line))
    return f"{line}\n" if size and size % columns == 0 else f"{line}\x1b[K\n"


def _fitting(lines: list[str], height: int, columns: int) -> list[str]:
    """The first lines that fit a screen of that size, wrapped at its edge; the last one tells how many are left out."""
    shown, used = list[str](), 0
    for number, line in enumerate(lines):
        used += max(1, -(-width(plain(line)) // columns))
        left = len(lines) - number
        if used > height - (left > 1):
            return [*shown, f"… {left} more lines"]
        shown.append(line)
    return shown
