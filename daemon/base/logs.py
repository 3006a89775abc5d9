"""Structured logs to standard error: key=value text or one JSON object a line, on top of the standard library's logging.

Any field may contain text from peers: control, bidirectional and invisible characters are escaped, so that it cannot forge a
line or control a terminal. Fields named like secrets, and credentials inside URLs, are masked.
"""

import json
import logging
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TextIO

from aghbus.protocol.base.text import escape

LOGGER: Final = "aghbus"
"""Root of the loggers of aghbus; its level is the configured one."""

MAX_FIELD_CHARACTERS: Final = 8192
"""A longer field is cut, so that a log never contains a 1 MiB envelope."""

MAX_LIMITER_KEYS: Final = 1024
"""Event keys that a limiter keeps; above that the least recently used one is closed."""

_MINUTE: Final = 60.0  # seconds
_FIELDS: Final = "aghbus_fields"  # attribute of a LogRecord
_MASK: Final = "***"
_SECRET: Final = re.compile(r"token|passw|secret|seed|credential|authorization", re.IGNORECASE)
# Not secret in spite of their names: the public token in a subject, and file names.
_NOT_SECRET: Final = re.compile(r"route_token|.*_(file|path)", re.IGNORECASE)
_USERINFO: Final = re.compile(r"(://)[^/@\s]+@")
_BARE: Final = re.compile(r"[^\s\"=\\]+")
_RESERVED: Final = frozenset({"ts", "level", "logger", "msg", "error", "traceback"})


def configure(level: str, form: str, stream: TextIO | None = None) -> None:
    """Send all logging to `stream` (standard error), in `form` `text` or `json`, ours from `level` on.

    `level` is debug, info, warning or error. Other libraries stay at warning unless ours are at debug. Calling it again
    replaces what it did before.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    set_level(level)


def set_level(level: str) -> None:
    """Change the level of a running daemon; see `configure`."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger(LOGGER).setLevel(number)
    logging.getLogger().setLevel(number if number <= logging.DEBUG else max(number, logging.WARNING))


def event(logger: logging.Logger, level: int, message: str, /, **fields: object) -> None:
    """Log `message`, a fixed text without values, with `fields`."""
    if logger.isEnabledFor(level):
        logger.log(level, "%s", message, extra={_FIELDS: fields}, stacklevel=2)


def exception(logger: logging.Logger, message: str, error: BaseException, /, **fields: object) -> None:
    """Log `message` with `fields` at level error, with the traceback of `error`."""
    logger.error("%s", message, exc_info=error, extra={_FIELDS: fields}, stacklevel=2)


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z warning logger message key=value`, a traceback below it behind `    | `."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, plus the lines of a traceback; no value can begin a new line."""
        parts = [_timestamp(record), record.levelname.lower(), record.name, escape(_message(record))]
        parts += (f"{escape(name)}={_quote(value)}" for name, value in _fields(record))
        lines = [" ".join(parts)]
        lines += (f"    | {escape(line)}" for line in _traceback(self, record).splitlines())
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ts, level, logger, msg, the fields, and traceback when there is one. ASCII only."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a field called like one of the fixed members gets `field_` before its name."""
        line: dict[str, object] = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": _message(record),
        }
        for name, value in _fields(record):
            line[f"field_{name}" if name in _RESERVED else name] = value
        if traceback := _traceback(self, record):
            line["traceback"] = traceback
        # ensure_ascii escapes all but DEL, which is ASCII and yet no character to print
        return json.dumps(line, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")


class EventLimiter:
    """Logs at most `per_minute` events of one key in a minute, and then the number of suppressed ones.

    A minute starts with the first event of a key. `flush` writes due lines; call it regularly, and at the end.
    """

    def __init__(self, logger: logging.Logger, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._per_minute = per_minute
        self._clock = clock
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def event(self, level: int, key: str, message: str, /, **fields: object) -> bool:
        """Log as `event` does unless `key` has used up its minute. True when the line was logged."""
        now = self._clock()
        window = self._windows.get(key)
        if window is not None and now - window.start >= _MINUTE:
            self._close(key)
            window = None
        if window is None:
            window = self._windows[key] = _Window(now, level, message)
            if len(self._windows) > MAX_LIMITER_KEYS:
                self._close(next(iter(self._windows)))
        self._windows.move_to_end(key)
        if window.seen >= self._per_minute:
            window.suppressed += 1
            return False
        window.seen += 1
        event(self._logger, level, message, **fields)
        return True

    def flush(self, *, everything: bool = False) -> None:
        """Close the minutes that are over, or all of them, writing one `suppressed=N` line for each with suppressed events."""
        now = self._clock()
        for key in [key for key, window in self._windows.items() if everything or now - window.start >= _MINUTE]:
            self._close(key)

    def _close(self, key: str) -> None:
        window = self._windows.pop(key)
        if window.suppressed:
            event(self._logger, window.level, window.message, event=key, suppressed=window.suppressed)


class _Window:
    __slots__ = ("level", "message", "seen", "start", "suppressed")

    def __init__(self, start: float, level: int, message: str) -> None:
        self.start = start
        self.level = level
        self.message = message
        self.seen = 0
        self.suppressed = 0


def mask_urls(text: str) -> str:
    """`text` with the credentials in every URL of it masked: `nats://user:secret@host` is `nats://***@host`."""
    return _USERINFO.sub(rf"\1{_MASK}@", text)


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _message(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except (TypeError, ValueError):  # a library's broken format string must not lose the line
        text = str(record.msg)
    return mask_urls(_cut(text))


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    fields: Mapping[str, object] = getattr(record, _FIELDS, {})
    for name, value in fields.items():
        yield name, _clean(name, value)


def _clean(name: str, value: object) -> object:
    """`value` as JSON can write it, secrets masked; unknown types as their text."""
    if _SECRET.search(name) and not _NOT_SECRET.fullmatch(name):
        return _MASK
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, Mapping):
        return {str(key): _clean(str(key), entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(name, entry) for entry in value]
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, BaseException):
        value = f"{type(value).__name__}: {value}" if str(value) else type(value).__name__
    return mask_urls(_cut(str(value)))


def _cut(text: str) -> str:
    dropped = len(text) - MAX_FIELD_CHARACTERS
    return f"{text[:MAX_FIELD_CHARACTERS]}… ({dropped} more)" if dropped > 0 else text


def _quote(value: object) -> str:
    """A value of a key=value line: bare when it is one plain word, else quoted with `"` and `\\` escaped."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if _BARE.fullmatch(text) and escape(text) == text:
        return text
    return '"' + escape(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return mask_urls(formatter.formatException(record.exc_info))


def verbosity_level(count: int) -> str | None:
    """The level that `-v` given `count` times asks for: None, info, debug."""
    return (None, "info", "debug")[min(count, 2)]
