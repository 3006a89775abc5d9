"""Text for people: tables, times and labels. Every string of the API is escaped by `safe` before it is printed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from aghbus.protocol.base.annotations import Any

GAP = "  "
"""Between two columns."""
MIN_LAST_COLUMN = 16
"""Width down to which the last column of a table is cut before the others are."""
MIN_COLUMN = 6
"""Width of a column in the narrowest terminal."""
ID_END = 8
"""Characters of the end of an id that stand for it where a table is too wide."""
NOT_ENCRYPTED = "direct rooms are not encrypted: the operator of the broker can read them"
"""Printed on standard error by every command that uses a direct room (docs/threat-model.md, "What v0 cannot give")."""

_COLORS = {
    "working": "36",
    "running": "36",
    "leased": "36",
    "needs_input": "1;33",
    "waiting": "1;33",
    "completed": "32",
    "active": "32",
    "failed": "31",
    "dead": "31",
    "problem": "31",
    "not ready": "31",
    "inactive": "33",
    "canceled": "2",
    "expired": "2",
    "acked": "2",
}
"""The attributes of each word that `painted` colours, as in an SGR sequence (ECMA-48)."""


class Id(str):
    """An id in a table. Where the table is too wide, generated ids are shown by their end."""

    __slots__ = ()


class State(str):
    """A state in a table or a field, which is coloured."""

    __slots__ = ()


def painted(state: object) -> str:
    """The `safe` text of a state in its colour. `Output` removes the colour where it is not wanted."""
    text = safe(state)
    return f"\x1b[{_COLORS[text]}m{text}\x1b[0m" if text in _COLORS else text


def plain(text: str) -> str:
    """`text` without the sequences of `painted`; it has no others, because `safe` escapes them."""
    first, *rest = text.split("\x1b[")
    return first + "".join(part.partition("m")[2] for part in rest)


def short_id(text: str) -> str:
    """The end of a generated id, by which every command finds it; any other id as it is."""
    unique = text.rpartition("_")[2]
    generated = len(unique) == 32 and not unique.strip("0123456789abcdef")
    return unique[-ID_END:] if generated else text


def safe(value: object) -> str:
    """`value` as text that cannot move a cursor, recolour, forge a line or reorder text; None is `-`."""
    if value is None:
        return "-"
    text = value if isinstance(value, str) else str(value)
    if text.isascii() and text.isprintable():  # the usual case, decided without loading the escaping rules
        return text
    from aghbus.protocol.base.text import escape

    return escape(text)


def quoted(value: object) -> str:
    """`safe` text between quotes, or nothing at all for None and the empty text."""
    return f"“{safe(value)}”" if value not in (None, "") else ""


def shell(value: object) -> str:
    """`value` as one word of a shell command that a person may paste: text chosen by a peer must not become a command."""
    text = safe(value)
    if text.isascii() and text.replace("_", "").replace("-", "").replace(".", "").isalnum() and text[0] != "-":
        return text
    return "'" + text.replace("'", "'\\''") + "'"


def compact(value: Any) -> str:
    """A JSON value in one line, in ASCII, so that nothing in it needs escaping but DEL."""
    import json

    return safe(json.dumps(value, separators=(",", ":")))


def readable(value: Any) -> str:
    """A JSON object member by member: texts of several lines as indented lines, everything else in one line."""
    if not isinstance(value, dict):
        return compact(value)
    return "\n".join(f"{safe(name)}:{_member(entry)}" for name, entry in value.items())


def _member(entry: Any) -> str:
    if not isinstance(entry, str):
        return GAP + compact(entry)
    lines = entry.removesuffix("\n").split("\n")
    return f"{GAP}{safe(lines[0])}" if len(lines) == 1 else "\n" + "\n".join(f"{GAP}{safe(line)}" for line in lines)


def width(text: str) -> int:
    """Columns that `text` takes on a terminal: wide East Asian characters count two, marks on another character none."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(0 if category(char) in ("Mn", "Me") else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def cut(text: str, columns: int) -> str:
    """`text` in at most `columns` columns, ending in `…` when something was cut."""
    if width(text) <= columns:
        return text
    kept, used = [], 1  # the ellipsis itself
    for char in text:
        used += width(char)
        if used > columns:
            break
        kept.append(char)
    return "".join(kept) + "…"


def terminal_columns() -> int:
    """Columns of the terminal on standard output; 0, meaning no bound, when it is none."""
    try:
        return os.get_terminal_size(1).columns
    except (OSError, ValueError):
        return 0


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], columns: int | None = None) -> str:
    """Rows under their titles, cells escaped, aligned and cut to `columns` (default: terminal).

    Where they do not fit, ids are shown by their end, then the last column is cut, then the widest of the others; the first
    one, which names the row, and ids of `ID_END` characters are never cut.
    """
    lines = [list(titles), *([_cell(cell) for cell in row] for row in rows)]
    bound = terminal_columns() if columns is None else columns
    room = bound - len(GAP) * (len(titles) - 1)
    widths = _widths(lines)
    if bound and sum(widths) > room:
        lines = [[Id(short_id(cell)) if isinstance(cell, Id) else cell for cell in line] for line in lines]
        widths = _widths(lines)
        _narrow(widths, room, [_least(column) for column in zip(*lines, strict=True)])
    return "\n".join(_line(line, widths) for line in lines)


def _cell(value: object) -> str:
    """The escaped text of a cell, which is still an Id or a State if the value is."""
    return type(value)(safe(value)) if isinstance(value, Id | State) else safe(value)


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(width, column)) for column in zip(*lines, strict=True)]


def _least(column: Sequence[str]) -> int:
    return ID_END if any(isinstance(cell, Id) for cell in column) else MIN_COLUMN


def _narrow(widths: list[int], bound: int, least: Sequence[int]) -> None:
    """Make the columns but the first narrower until the sum is `bound`, or all are at their `least` width."""
    last = len(widths) - 1
    while (excess := sum(widths) - bound) > 0 and last > 0:
        if widths[last] > MIN_LAST_COLUMN:
            widths[last] = max(MIN_LAST_COLUMN, widths[last] - excess)
            continue
        widest = max(range(1, last + 1), key=lambda column: widths[column] - least[column])
        if widths[widest] <= least[widest]:
            return
        widths[widest] -= 1


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = []
    for cell, size in zip(cells, widths, strict=True):
        # Every command takes the end of an id.
        shown = cell[-size:] if isinstance(cell, Id) and cell.isascii() else cut(cell, size)
        space = " " * (size - width(shown))
        padded.append((painted(shown) if isinstance(cell, State) else shown) + space)
    return GAP.join(padded).rstrip()


def fields(pairs: Iterable[tuple[str, object]], columns: int | None = None) -> str:
    """`label  value` lines, labels padded to one width; pairs whose value is None or empty are left out. Values are broken between
    words at `columns` (default: terminal)."""
    given = [(label, value) for label, value in pairs if value is not None and value != ""]
    shown = [(label, painted(value) if isinstance(value, State) else safe(value)) for label, value in given]
    size = max((len(label) for label, _ in shown), default=0)
    return "\n".join(wrapped(f"{label:<{size}}{GAP}", value, columns) for label, value in shown)


def wrapped(head: str, text: str, columns: int | None = None) -> str:
    """`head` and `text`, which is broken between words at `columns` (default: terminal) and continued below its begin. A word that
    is longer stays whole: it may be an id."""
    bound = terminal_columns() if columns is None else columns
    if not bound:
        return head + text
    room = max(bound - width(head), MIN_LAST_COLUMN)
    first, *words = text.split(" ")
    lines = [first]
    for word in words:
        if width(lines[-1]) + 1 + width(word) > room:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return head + ("\n" + " " * width(head)).join(lines)


def indented(text: str, by: str = "  ") -> str:
    """Every line of `text` with `by` in front."""
    return "\n".join(by + line for line in text.split("\n"))


def moment(milliseconds: int) -> str:
    """Local time of a Unix time in milliseconds: with the date when it is not today's."""
    try:
        then, now = time.localtime(milliseconds / 1000), time.localtime()
    except (OverflowError, ValueError, OSError):
        return "-"
    same_day = then[:3] == now[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", then)


def span(seconds: float) -> str:
    """A length of time in its two largest units: `42s`, `3m 10s`, `5h 2m`, `3d 4h`."""
    from aghbus.protocol.base.durations import span

    return span(seconds)


def local_times(text: str) -> str:
    """A sentence of the daemon, its UTC times (`2026-11-24T16:46:00Z`) as local ones: `16:46:00`, `tomorrow 16:46`."""
    import re

    return re.sub(r"(\bat )?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:Z| UTC)", _local_time, text)


def _local_time(found: Any) -> str:
    from datetime import datetime

    try:
        then = datetime.fromisoformat(f"{found[2]}T{found[3]}+00:00").astimezone()
        days = (then.date() - datetime.now().date()).days
    except (OverflowError, ValueError):
        return str(found[0])
    if days == 0:
        return f"{found[1] or ''}{then:%H:%M:%S}"
    day = {1: "tomorrow", -1: "yesterday"}.get(days, f"{then:%Y-%m-%d}")
    return f"{day} {then:%H:%M}"


def ago(milliseconds: int) -> str:
    """How long ago a Unix time in milliseconds was."""
    return span(time.time() - milliseconds / 1000) + " ago"


def counted(number: int, thing: str) -> str:
    """`1 work`, `2 works`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def size(octets: int) -> str:
    """Bytes in the largest binary unit that keeps a digit before the point."""
    amount, unit = float(octets), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
