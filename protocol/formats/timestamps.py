"""ISO 8601 timestamps of foreign messages, parsed independently of this machine's clock and time zone."""

import re
from datetime import UTC, datetime
from typing import Final

import msgspec

from aghbus.protocol.agh.limits import REPLAY_AGE
from aghbus.protocol.formats.model import Finding

_ISO: Final = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[Tt](\d{2}):(\d{2}):(\d{2})(?:[.,]\d+)?(?:([Zz])|([+-])(\d{2})(?::?(\d{2}))?)?", re.ASCII
)
_LAST_SECOND: Final = 253_402_300_799  # 9999-12-31T23:59:59Z: the last one with a year of four digits


class Timestamp(msgspec.Struct, frozen=True):
    """A moment: `day` (YYYYMMDD) and `clock` (HH:MM:SS) as written; `seconds` Unix time, None without an offset."""

    day: str
    clock: str
    seconds: int | None


def read_timestamp(text: str) -> Timestamp | None:
    """Parse an ISO 8601 date and time (extended form); None when it is invalid."""
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, hours, minutes = (
        int(match[index] or 0) for index in (1, 2, 3, 4, 5, 6, 9, 10)
    )
    if second > 60 or hours > 23 or minutes > 59:
        return None
    try:
        local = datetime(year, month, day, hour, minute, tzinfo=UTC)
    except ValueError:
        return None
    seconds = None
    if match[7] or match[8]:
        offset = (hours * 3600 + minutes * 60) * (-1 if match[8] == "-" else 1)
        seconds = int(local.timestamp()) + second - offset
    return Timestamp(f"{match[1]}{match[2]}{match[3]}", f"{match[4]}:{match[5]}:{match[6]}", seconds)


def utc(seconds: int) -> str:
    """Unix seconds as `YYYY-MM-DDTHH:MM:SSZ`; times after the year 9999 become its last second."""
    return datetime.fromtimestamp(min(seconds, _LAST_SECOND), UTC).replace(tzinfo=None).isoformat() + "Z"


def skew(stamp: Timestamp, now: int, path: str) -> tuple[Finding, ...]:
    """A warning when a message's timestamp differs from `now` by more than the replay age (adapters.md, Time)."""
    if stamp.seconds is None or abs(stamp.seconds - now) <= REPLAY_AGE:
        return ()
    return (
        Finding(path, "clock_skew", "warning", f"is {abs(stamp.seconds - now)} s away from the time of submission"),
    )
