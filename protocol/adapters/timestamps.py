"""ISO 8601 timestamps of foreign messages, parsed independently of this machine's clock and time zone."""

import re
from typing import Final

import msgspec

from aghbus.protocol.adapters.model import Finding
from aghbus.protocol.limits import REPLAY_AGE

_ISO: Final = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[Tt](\d{2}):(\d{2}):(\d{2})(?:[.,]\d+)?(?:([Zz])|([+-])(\d{2})(?::?(\d{2}))?)?", re.ASCII
)
_LAST_SECOND: Final = 253_402_300_799  # 9999-12-31T23:59:59Z: the last one with a year of four digits
_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


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
    year, month, day, hour, minute, second = (int(match[index]) for index in range(1, 7))
    if not (year >= 1 and 1 <= month <= 12 and 1 <= day <= _month_days(year, month)):
        return None
    if hour > 23 or minute > 59 or second > 60:
        return None
    written = Timestamp(f"{match[1]}{match[2]}{match[3]}", f"{match[4]}:{match[5]}:{match[6]}", None)
    if match[7]:
        offset = 0
    elif match[8]:
        hours, minutes = int(match[9]), int(match[10] or 0)
        if hours > 23 or minutes > 59:
            return None
        offset = (hours * 3600 + minutes * 60) * (-1 if match[8] == "-" else 1)
    else:
        return written
    local = _days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second
    return msgspec.structs.replace(written, seconds=local - offset)


def utc(seconds: int) -> str:
    """Unix seconds as `YYYY-MM-DDTHH:MM:SSZ`; times after the year 9999 become its last second."""
    days, rest = divmod(min(seconds, _LAST_SECOND), 86_400)
    year, month, day = _civil(days)
    return f"{year:04d}-{month:02d}-{day:02d}T{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}Z"


def skew(stamp: Timestamp, now: int, path: str) -> tuple[Finding, ...]:
    """A warning when a message's timestamp differs from `now` by more than the replay age (adapters.md, Time)."""
    if stamp.seconds is None or abs(stamp.seconds - now) <= REPLAY_AGE:
        return ()
    return (
        Finding(path, "clock_skew", "warning", f"is {abs(stamp.seconds - now)} s away from the time of submission"),
    )


def _month_days(year: int, month: int) -> int:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 29 if month == 2 and leap else _DAYS[month - 1]


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the Gregorian calendar; years begin in March, so that the leap day is the last day."""
    shifted = year - (month <= 2)
    era_year = shifted % 400
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return shifted // 400 * 146_097 + era_year * 365 + era_year // 4 - era_year // 100 + day_of_year - 719_468


def _civil(days: int) -> tuple[int, int, int]:
    era, day_of_era = divmod(days + 719_468, 146_097)
    year = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year + era * 400 + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1
