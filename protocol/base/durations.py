"""Durations as text: `500ms`, `30s`, `5m`, `24h`, `7d`; a number without a unit is in seconds."""

import re
from typing import Final

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}  # in seconds
_FORM: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d)?", re.ASCII)


def parse_duration(text: str) -> float:
    """The duration in seconds. Raises ValueError for any other form."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a duration such as 500ms, 30s, 5m, 24h or 7d")
    return float(match[1]) * _UNITS[match[2] or "s"]


def format_duration(seconds: float) -> str:
    """The duration in the largest unit that keeps the number whole: 604800 is `7d`, 1.5 is `1500ms`."""
    milliseconds = round(seconds * 1000)
    for unit in ("d", "h", "m", "s"):
        width = round(_UNITS[unit] * 1000)
        if milliseconds % width == 0 and milliseconds:
            return f"{milliseconds // width}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0s"


def span(seconds: float) -> str:
    """A length of time for people, in its two largest units: `42s`, `3m 10s`, `5h 2m`, `3d 4h`."""
    whole = max(0, int(seconds))
    for size, unit, smaller, smaller_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}" + (f" {rest}{smaller_unit}" if rest else "")
    return f"{whole}s"
