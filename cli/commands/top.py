"""`aghctl top`: the overview on a terminal, live."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from aghbus.cli.app.errors import YES
from aghbus.cli.app.output import is_terminal
from aghbus.cli.app.text import counted, cut, painted, plain, safe, size, width
from aghbus.cli.commands.inbox import inbox_table
from aghbus.cli.commands.peers import peers_table
from aghbus.cli.commands.work_read import works_table
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


LISTS = ("works", "peers", "inbox")
SORTS = ("needs you", "changed", "state", "peer", "text")
"""Orders of works; the first one begins with those that need input."""
KEYS = "q quit  tab list  s sort  / filter  enter one work  esc back  j k move"

_URGENCY = {"needs_input": 0, "working": 1, "submitted": 1}


class Overview:
    """What the daemon answered last, and how many messages a second passed it since the time before."""

    def __init__(self, status: dict[str, Any], works: list[Any], peers: list[Any], items: list[Any]) -> None:
        self.status = status
        self.lists = {"works": works, "peers": peers, "inbox": items}
        self.rates = (0.0, 0.0)

    def after(self, before: Overview | None) -> Overview:
        """The same with rates, from the counters of `before`."""
        if before is not None and (took := self.status["uptime_s"] - before.status["uptime_s"]) > 0:
            old, new = _passed(before.status["counters"]), _passed(self.status["counters"])
            self.rates = ((new[0] - old[0]) / took, (new[1] - old[1]) / took)
        return self

    def document(self) -> dict[str, Any]:
        """All of it as one JSON document."""
        return {"status": self.status, **self.lists}


def _passed(counters: dict[str, int]) -> tuple[int, int]:
    """Messages that were received and sent so far."""
    return counters.get("received", 0), sum(count for name, count in counters.items() if name.startswith("sent."))


class TopView:
    """The state of the screen."""

    def __init__(self) -> None:
        self.listed = LISTS[0]
        self.sort = 0
        self.filter = ""
        self.typing = False  # into the filter
        self.selected = 0
        self.detail: str | None = None  # the id of the work that is shown alone
        self.detail_text = ""
        self.quit = False

    def press(self, key: str, overview: Overview) -> None:
        """A key: a character, or `up`, `down`, `enter`, `escape`, `tab`, `backspace`."""
        if self.typing:
            self._type(key)
        elif key in ("q", "escape", "backspace") and self.detail is not None:
            self.detail = None
        elif key == "q":
            self.quit = True
        elif key in ("up", "k", "down", "j"):
            last = len(self.rows(overview)) - 1
            self.selected = max(0, min(self.selected + (1 if key in ("down", "j") else -1), last))
        elif key == "tab":
            self.listed, self.selected = LISTS[(LISTS.index(self.listed) + 1) % len(LISTS)], 0
        elif key == "s":
            self.sort, self.selected = (self.sort + 1) % len(SORTS), 0
        elif key == "/":
            self.typing = True
        elif key == "enter" and (rows := self.rows(overview)):
            found = rows[min(self.selected, len(rows) - 1)]
            self.detail = found.get("work_id") or (found.get("message") or {}).get("work_id")
        elif key == "escape":
            self.filter = ""

    def _type(self, key: str) -> None:
        self.selected = 0
        if key in ("enter", "escape"):
            self.typing = False
            self.filter = "" if key == "escape" else self.filter
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key

    def rows(self, overview: Overview) -> list[dict[str, Any]]:
        """The entries of the list that is shown, filtered and in order."""
        wanted = self.filter.lower()
        found = [row for row in overview.lists[self.listed] if wanted in _searched(row)]
        return sorted(found, key=_ORDERS[SORTS[self.sort]]) if self.listed == "works" else found

    def lines(self, overview: Overview, height: int, columns: int) -> list[str]:
        """The screen: its lines in SGR colours, at most `height`, and the number of the selected one is marked by `>`."""
        head = [*_head(overview, columns), self._bar(columns)]
        room = max(1, height - len(head) - 1)
        alone = self.detail is not None
        body = self.detail_text.split("\n")[:room] if alone else self._list(overview, room, columns)
        foot = f"filter: {safe(self.filter)}█" if self.typing else KEYS
        return [*head, *body, *[""] * (room - len(body)), cut(foot, columns)]

    def _bar(self, columns: int) -> str:
        if self.detail is not None:
            return cut(f"work {safe(self.detail)}", columns)
        shown = "  ".join(f"[{name}]" if name == self.listed else name for name in LISTS)
        order = f"  by {SORTS[self.sort]}" if self.listed == "works" else ""
        only = f"  only “{safe(self.filter)}”" if self.filter else ""
        return cut(f"{shown}{order}{only}", columns)

    def _list(self, overview: Overview, room: int, columns: int) -> list[str]:
        rows = self.rows(overview)
        if not rows:
            return ["  nothing here"]
        self.selected = min(self.selected, len(rows) - 1)
        first = max(0, min(self.selected - room // 2, len(rows) - room + 1))
        shown = rows[first : first + room - 1]
        title, *lines = _TABLES[self.listed](shown, columns - 2).split("\n")
        marked = [("> " if first + at == self.selected else "  ") + line for at, line in enumerate(lines)]
        return [f"  {title}", *marked]


def _searched(row: dict[str, Any]) -> str:
    message = row.get("message") if isinstance(row.get("message"), dict) else row
    assert message is not None
    names = ("work_id", "state", "initiator", "target", "text", "peer_id", "summary", "sender", "id", "capability")
    return " ".join(str(source.get(name) or "") for source in (row, message) for name in names).lower()


_ORDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "needs you": lambda work: (_URGENCY.get(work["state"], 2), -work["updated_ms"]),
    "changed": lambda work: -work["updated_ms"],
    "state": lambda work: (work["state"], -work["updated_ms"]),
    "peer": lambda work: (work["target"] if work["role"] == "initiator" else work["initiator"], -work["updated_ms"]),
    "text": lambda work: work["text"].lower(),
}
_TABLES: dict[str, Callable[[Sequence[Any], int], str]] = {
    "works": lambda rows, columns: works_table({"works": rows}, columns),
    "peers": lambda rows, columns: peers_table({"peers": rows}, columns),
    "inbox": lambda rows, columns: inbox_table({"items": rows}, columns),
}


def _head(overview: Overview, columns: int) -> list[str]:
    """The daemon in one line, its counts in another, and its problems."""
    status, (received, sent) = overview.status, overview.rates
    state = painted("ready" if status["ready"] else "not ready")
    first = (
        f"{safe(status['peer_id'])}  {state}  broker {safe(status['broker']['state'])}  store {size(status['store']['bytes'])}"
        f"  in {received:.1f}/s  out {sent:.1f}/s"
    )
    counts = [f"{name} {_counts(status[name])}" for name in ("works", "inbox", "outbox", "peers")]
    if status["requests"]:
        counts.append(counted(status["requests"], "request"))
    if status["quarantined"]:
        counts.append(f"quarantined {status['quarantined']}")
    problems = [painted("problem") + f": {cut(safe(one), max(1, columns - 9))}" for one in status["problems"]]
    lines = [first if len(plain(first)) <= columns else cut(plain(first), columns), cut("  ".join(counts), columns)]
    return [*lines, *problems[:3]]


def _counts(of: dict[str, int]) -> str:
    return " ".join(f"{count} {name.replace('_', ' ')}" for name, count in of.items() if count) or "0"


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
