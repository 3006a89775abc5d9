"""Durations as text: `500ms`, `30s`, `5m`, `1h30m`, `7d`; a number without a unit is in seconds."""

import re
from typing import Final

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}  # in seconds
_NUMBER: Final = r"[0-9]{1,12}(\.[0-9]{1,6})?"
_UNIT: Final = "(ms|s|m|h|d)"
DURATION: Final = re.compile(f"{_NUMBER}({_UNIT}({_NUMBER}{_UNIT})*)?")
"""Numbers with units, which are added, or one number."""

_PART: Final = re.compile(f"(?P<number>{_NUMBER})(?P<unit>{_UNIT}?)")


def parse_duration(text: str) -> float:
    """The duration in seconds. Raises ValueError for any other form."""
    text = text.strip()
    if DURATION.fullmatch(text) is None:
        raise ValueError("not a duration such as 500ms, 30s, 5m, 1h30m or 7d")
    return sum(float(part["number"]) * _UNITS[part["unit"] or "s"] for part in _PART.finditer(text))


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
