"""`aghctl top`: the overview on a terminal, live."""

from __future__ import annotations

import threading
import time

from aghbus.cli.app.errors import YES
from aghbus.cli.app.output import is_terminal
from aghbus.cli.app.text import cut, safe, width
from aghbus.cli.commands.top_view import Overview, TopView
from aghbus.cli.context import Context
from aghbus.client.errors import ClientError, RefusedByDaemon
from aghbus.client.http import quote
from aghbus.host.command_line import Command
from aghbus.protocol.base.annotations import Any

LISTED = 500
"""Works, and messages of the inbox, that are shown at most."""
LOOK_SECONDS = 1.0
"""Between two looks at the daemon."""
_TICK = 100  # milliseconds that the screen waits for a key
_PLAIN_COLUMNS = 1_000  # where no terminal bounds a line


def run(context: Context, values: dict[str, Any]) -> int:
    """Show the overview until `q`; once where no terminal shows it."""
    if not (context.output.human and is_terminal(1, context.env)):
        view, overview = TopView(), look(context)
        context.output.answer(
            overview.document(),
            lambda _: "\n".join(line for line in view.lines(overview, LISTED + 10, _PLAIN_COLUMNS)[:-1] if line),
        )
        return YES
    import curses

    curses.wrapper(lambda screen: _Screen(context, screen).run())
    return YES


def look(context: Context) -> Overview:
    """All that the overview shows. Raises ClientError."""
    works = context.api.get("/v1/works", [("limit", LISTED)])["works"]
    peers = context.api.get("/v1/peers")["peers"]
    items = context.api.get("/v1/inbox", [("limit", LISTED)])["items"]
    return Overview(context.api.get("/v1/status"), works, peers, items)


class _Screen:
    """A terminal in curses. A thread asks the daemon, so that keys never wait for it."""

    def __init__(self, context: Context, screen: Any) -> None:
        self._context = context
        self._screen = screen
        self._view = TopView()
        self._overview = look(context)
        self._away = ""

    def run(self) -> None:
        import curses

        curses.curs_set(0)
        curses.use_default_colors()
        for color in range(1, 8):
            curses.init_pair(color, color, -1)
        self._screen.timeout(_TICK)
        threading.Thread(target=self._follow, daemon=True).start()
        while not self._view.quit:
            self._draw()
            try:
                key = self._screen.get_wch()
            except curses.error:  # no key in time
                continue
            if (pressed := _name(key)) is not None:
                before = self._view.detail
                self._view.press(pressed, self._overview)
                if self._view.detail not in (None, before):
                    self._show_work()

    def _follow(self) -> None:
        while not self._view.quit:
            time.sleep(LOOK_SECONDS)
            try:
                self._overview = look(self._context).after(self._overview)
                self._away = ""
                if self._view.detail is not None:
                    self._show_work()
            except ClientError as error:
                self._away = error.message

    def _show_work(self) -> None:
        from aghbus.cli.commands.work_read import work_text

        try:
            detail = self._context.api.get(f"/v1/works/{quote(self._view.detail or '')}")
            self._view.detail_text = work_text(self._context, "", detail)
        except RefusedByDaemon as error:
            self._view.detail_text = error.message
        except ClientError as error:
            self._away = error.message

    def _draw(self) -> None:
        import curses

        height, columns = self._screen.getmaxyx()
        lines = self._view.lines(self._overview, height, columns - 1)
        if self._away:
            lines[-1] = cut(f"the daemon is away: {safe(self._away)}", columns - 1)
        self._screen.erase()
        for at, line in enumerate(lines[:height]):
            column = 0
            for text, attribute in _attributed(line):
                shown = cut(text, columns - 1 - column)
                try:  # noqa: SIM105 - contextlib is slow to load
                    self._screen.addstr(at, column, shown, attribute | (curses.A_BOLD if line.startswith("> ") else 0))
                except curses.error:
                    pass  # the terminal became smaller meanwhile
                column += width(shown)
        self._screen.refresh()


def _attributed(line: str) -> list[tuple[str, int]]:
    """The pieces of a line with SGR colours, each with its attribute of curses."""
    import curses

    pieces: list[tuple[str, int]] = []
    attribute = 0
    for piece in line.split("\x1b["):
        code, is_code, text = piece.partition("m") if pieces else ("", "", piece)
        if is_code:
            bright = {"0": 0, "1": curses.A_BOLD, "2": curses.A_DIM}
            attribute = bright[code] if code in bright else curses.color_pair(int(code.rpartition(";")[2]) % 10)
        pieces.append((text, attribute))
    return pieces


def _name(key: int | str) -> str | None:
    """The key as TopView knows it; None for others."""
    import curses

    names: dict[int | str, str] = {
        curses.KEY_UP: "up",
        curses.KEY_DOWN: "down",
        curses.KEY_ENTER: "enter",
        curses.KEY_BACKSPACE: "backspace",
        "\n": "enter",
        "\r": "enter",
        "\x1b": "escape",
        "\t": "tab",
        "\x7f": "backspace",
    }
    if isinstance(key, str) and key.isprintable():
        return key
    return names.get(key)


COMMANDS = {
    "top": Command(
        run,
        description=(
            "Show works, peers, the inbox, rates and problems of the daemon, live, until `q`. `tab` changes the list, `s` the\n"
            "order, `/` filters, `enter` shows one work. Where no terminal shows it, it is printed once."
        ),
        examples=["aghctl top", "aghctl --name patch-worker top", "aghctl top -o json"],
    ),
}
