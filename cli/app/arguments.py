"""Values of options, from their text, and the options of every command."""

from __future__ import annotations

from aghbus.cli.app.completers import instances
from aghbus.host.command_line import Argument, nonempty

LONGEST_SPAN = 366 * 86_400
"""Seconds. A longer duration is a mistake; some 300 years overflow a clock."""


def seconds(text: str) -> float:
    """A duration: `30s`, `5m`, `1h30m`, `7d`, or a number of seconds. ValueError names the rule."""
    from aghbus.protocol.base.durations import parse_duration  # slow to load

    try:
        span = parse_duration(text)
    except ValueError:
        raise ValueError("must be a duration such as 30s, 5m, 1h30m, or a number of seconds") from None
    if span > LONGEST_SPAN:
        raise ValueError("must be at most 366d")
    return span


def since(text: str) -> int:
    """Unix milliseconds of a time: a duration before now, a local time of today, or a date with or without a time (ISO 8601)."""
    import time

    try:
        if not {"-", ":"} & set(text):
            return int((time.time() - seconds(text)) * 1000)
        from datetime import datetime  # slow to load

        day = "" if "-" in text else time.strftime("%Y-%m-%dT")
        return max(0, int(datetime.fromisoformat(day + text).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        rule = "must be a duration such as 2h, a time of today such as 14:30, or a date such as 2026-11-23T14:30"
        raise ValueError(rule) from None


def lifetime(text: str) -> float:
    """A duration above 0."""
    span = seconds(text)
    if not span:
        raise ValueError("must be longer than 0")
    return span


def whole(text: str) -> int:
    """A whole number, not negative."""
    if not (text.isascii() and text.isdigit()) or len(text) > 18:  # 18 digits fit 64 bits
        raise ValueError("must be a whole number, 0 or more")
    return int(text)


def positive(text: str) -> int:
    """A whole number, 1 or more. ValueError names the rule."""
    number = whole(text)
    if not number:
        raise ValueError("must be a whole number, 1 or more")
    return number


def host_port(text: str) -> tuple[str, int]:
    """HOST:PORT, of an address to listen on. ValueError names the rule."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError("must be HOST:PORT such as 127.0.0.1:8080 (port 0: a free one)")
    return host.removeprefix("[").removesuffix("]"), int(port)


def limit(text: str) -> int:
    """A number of rows: the API returns 1 to 1000 at a time."""
    number = whole(text)
    if not 1 <= number <= 1000:
        raise ValueError("must be a number from 1 to 1000")
    return number


def peer(text: str) -> str:
    """A peer id or a verified handle."""
    from aghbus.protocol.agh.identifiers import is_peer  # slow to load

    if not is_peer(text):
        rule = "must be a peer id (1 to 128 of a-z, 0-9, '.', '_', '-', the first a letter or digit)"
        raise ValueError(f"{rule} or a handle nickname@fingerprint (fingerprint: 32 hex digits)")
    return text


def channel(text: str) -> str:
    """The name of a channel."""
    from aghbus.protocol.agh.identifiers import is_channel

    if not is_channel(text):
        raise ValueError("must be 1 to 64 characters of a-z, 0-9, '_' and '-', the first a letter or digit")
    return text


def workspace(text: str) -> str:
    """A workspace id."""
    from aghbus.protocol.agh.identifiers import is_workspace_id

    if not is_workspace_id(text):
        raise ValueError("must be 1 to 256 bytes without '.', space, '*', '>' and control characters")
    return text


GLOBAL_OPTIONS = (
    Argument(
        "--name",
        type=nonempty,
        completer=instances,
        help="instance (default: $AGHD_NAME, this host's name, or the only one running)",
    ),
    Argument("--socket", metavar="PATH", type=nonempty, help="the daemon's Unix socket (default: $AGHD_API_SOCKET)"),
    Argument("--api", metavar="URL", type=nonempty, help="URL of the daemon's TCP API, such as http://127.0.0.1:4637"),
    Argument(
        "--token-file",
        metavar="FILE",
        help="file with the bearer token for --api (default: $AGHD_API_TOKEN_FILE, the instance's)",
    ),
    Argument("-o", "--output", metavar="FORM", choices=("human", "json", "jsonl"), help="human, json or jsonl"),
    Argument(
        "--color", metavar="WHEN", choices=("auto", "always", "never"), help="auto (on a terminal), always or never"
    ),
    Argument("--timeout", metavar="TIME", type=lifetime, help="how long to wait for the daemon (default 30s)"),
)
"""Understood before and after the name of every command."""
