"""The rules of configuration values: each describes itself, reads a value, and writes it back for people.

A value comes either typed from TOML or as text from a flag or the environment; both go through the same rule.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from aghbus.protocol.agh.limits import MAX_CARD_ENTRY_BYTES
from aghbus.protocol.base.addresses import is_ip_address, is_loopback
from aghbus.protocol.base.durations import format_duration, parse_duration
from aghbus.protocol.base.text import WHITE_SPACE, byte_length, has_control, is_blank, trim

SIZE_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
"""Bytes in one unit (IEC 80000-13)."""

MAX_COUNT: Final = 2**31 - 1
"""Default upper bound of a count or a number of seconds."""

_SIZE: Final = re.compile(r"(\d{1,19})\s?(B|KiB|MiB|GiB|TiB)?", re.ASCII)
_USERINFO: Final = re.compile(r"(//)[^/@\s]*@|^[^/@\s]*@")
_NKEY_SEED: Final = re.compile(r"S[NCAOUX][A-Z2-7]{40,}")  # nkeys: a seed's text starts with S and the kind
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


class InvalidValue(Exception):
    """A value does not obey its rule. `hint` says what to write, "" when the rule is enough."""

    def __init__(self, hint: str = "") -> None:
        super().__init__(hint)
        self.hint = hint


class ValueSource(msgspec.Struct, frozen=True):
    """How to read a value: `textual` for flags and environment, and the folders for `~` and a relative path."""

    textual: bool
    folder: str
    home: str


class ValueRule(msgspec.Struct, frozen=True):
    """One rule; without state, so that one can serve several keys."""

    @property
    def echo(self) -> bool:
        """Whether a message may repeat a bad value; not when it might be or hold a secret."""
        return True

    @property
    def text(self) -> str:
        """The rule in words, to follow "must be"."""
        raise NotImplementedError

    def read(self, raw: object, source: ValueSource) -> object:
        """The typed value of `raw`. Raises `InvalidValue`."""
        raise NotImplementedError

    def show(self, value: object) -> object:
        """`value` as TOML and JSON can write it: text, number, boolean or a list of texts; no secret in it."""
        return value


class Switch(ValueRule, frozen=True):
    """True or false."""

    text: ClassVar[str] = "true or false"

    def read(self, raw: object, source: ValueSource) -> bool:
        """A TOML boolean, or one of true/yes/on/1 and false/no/off/0 in text."""
        if isinstance(raw, bool):
            return raw
        word = raw.lower() if source.textual and isinstance(raw, str) else ""
        if word not in _TRUE | _FALSE:
            raise InvalidValue
        return word in _TRUE


class Count(ValueRule, frozen=True):
    """A whole number in a closed range."""

    low: int = 1
    high: int = MAX_COUNT

    @property
    def text(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def read(self, raw: object, source: ValueSource) -> int:
        """An integer, or its decimal digits in text."""
        if source.textual and isinstance(raw, str) and raw.isascii() and raw.isdigit() and len(raw) <= 15:
            raw = int(raw)
        if not isinstance(raw, int) or isinstance(raw, bool) or not self.low <= raw <= self.high:
            raise InvalidValue
        return raw


class Duration(ValueRule, frozen=True):
    """A time span in a closed range of seconds, kept as float seconds, or as int when `whole`."""

    low: float
    high: float = MAX_COUNT
    whole: bool = False

    @property
    def text(self) -> str:
        span = f"of at least {format_duration(self.low)}"
        if self.high != MAX_COUNT:
            span = f"from {format_duration(self.low)} to {format_duration(self.high)}"
        form = "whole seconds or a text such as" if self.whole else "seconds or a text such as 500ms,"
        return f"a duration {span}, in {form} 30s, 5m, 24h, 7d"

    def read(self, raw: object, source: ValueSource) -> float | int:
        """A number of seconds, or a text (`parse_duration`)."""
        if isinstance(raw, str):
            try:
                raw = parse_duration(raw)
            except ValueError:
                raise InvalidValue from None
        if not isinstance(raw, int | float) or isinstance(raw, bool) or not self.low <= raw <= self.high:
            raise InvalidValue
        if not self.whole:
            return float(raw)
        if raw != int(raw):
            raise InvalidValue("fractions of a second mean nothing here")
        return int(raw)

    def show(self, value: object) -> object:
        """In the largest unit that keeps the number whole."""
        return format_duration(value) if isinstance(value, int | float) else value


class Size(ValueRule, frozen=True):
    """A number of bytes, at least `low`."""

    low: int

    @property
    def text(self) -> str:
        return f"a size of at least {show_size(self.low)}, in bytes or a text such as 64MiB, 1GiB"

    def read(self, raw: object, source: ValueSource) -> int:
        """A number of bytes, or digits followed by B, KiB, MiB, GiB or TiB."""
        if isinstance(raw, str):
            match = _SIZE.fullmatch(raw.strip())
            if match is None:
                raise InvalidValue("units are powers of two: KiB, MiB, GiB, TiB")
            raw = int(match[1]) * SIZE_UNITS[match[2] or "B"]
        if not isinstance(raw, int) or isinstance(raw, bool) or not self.low <= raw < 1 << 63:
            raise InvalidValue
        return raw

    def show(self, value: object) -> object:
        """In the largest unit that keeps the number whole."""
        return show_size(value) if isinstance(value, int) else value


class Text(ValueRule, frozen=True):
    """One text that `accepts` accepts; `text` describes it."""

    text: str
    accepts: Callable[[str], bool]
    hint: str = ""

    def read(self, raw: object, source: ValueSource) -> str:
        """The text, never trimmed into shape."""
        if not isinstance(raw, str) or not self.accepts(raw):
            raise InvalidValue(self.hint)
        return raw


def choice(*words: str) -> Text:
    """One of a few words."""
    return Text(" or ".join(words) if len(words) == 2 else f"one of {', '.join(words)}", frozenset(words).__contains__)


def _is_card_text(text: str) -> bool:
    return (
        not is_blank(text)
        and text == trim(text)
        and not has_control(text)
        and byte_length(text) <= MAX_CARD_ENTRY_BYTES
    )


CARD_TEXT: Final = Text(
    f"a text of 1 to {MAX_CARD_ENTRY_BYTES} bytes without control characters or white space at either end",
    _is_card_text,
)
"""A line of a Peer Card."""

CAPABILITY_ID: Final = Text(
    f"an id of 1 to {MAX_CARD_ENTRY_BYTES} bytes without white space, commas and control characters, such as test.run",
    lambda text: _is_card_text(text) and not set(text) & {*WHITE_SPACE, ","},
    "several ids are several entries: --capability test.run --capability code.patch",
)
"""A capability that we claim. The protocol allows any text on a card; a list in one text would be one capability."""


class SecretText(ValueRule, frozen=True):
    """A secret: never repeated in a message, shown as stars."""

    text: str = "a non-empty text"
    echo: ClassVar[bool] = False

    def read(self, raw: object, source: ValueSource) -> str:
        """The text as it is; white space at its ends is refused."""
        if not isinstance(raw, str) or not raw or raw != raw.strip():
            raise InvalidValue("white space at either end does not belong to it")
        return raw

    def show(self, value: object) -> object:
        """Three stars, or None when there is none."""
        return None if value is None else "***"


class Texts(ValueRule, frozen=True):
    """A list of different texts that each obey `each`; commas separate them in text."""

    each: ValueRule
    at_least: int = 0

    @property
    def echo(self) -> bool:
        return self.each.echo

    @property
    def text(self) -> str:
        return f"a list{' of at least one entry' if self.at_least else ''}, without repetitions, each {self.each.text}"

    def read(self, raw: object, source: ValueSource) -> tuple[str, ...]:
        """A TOML array, text separated by commas, or several of those from a repeated flag."""
        if source.textual:
            given = [raw] if isinstance(raw, str) else raw
            raw = [part.strip() for text in given for part in text.split(",")] if isinstance(given, list) else raw
        if not isinstance(raw, list):
            raise InvalidValue('write it as ["one", "two"]')
        entries = tuple(str(self.each.read(entry, source)) for entry in raw)
        if len(set(entries)) != len(entries) or len(entries) < self.at_least:
            raise InvalidValue
        return entries

    def show(self, value: object) -> object:
        """A list of the entries, each as its rule shows it."""
        return [self.each.show(entry) for entry in value] if isinstance(value, Sequence) else value


class FilePath(ValueRule, frozen=True):
    """A path; `~` is the home folder, a relative one starts at the configuration file's folder or where aghd runs.

    `holds_secret` refuses a value that is the secret itself instead of the name of its file, and never repeats it.
    """

    holds_secret: bool = False
    echo: ClassVar[bool] = False

    @property
    def text(self) -> str:
        return "the path of a file, never the secret itself" if self.holds_secret else "a path"

    def read(self, raw: object, source: ValueSource) -> str:
        """The absolute path; it need not exist."""
        if not isinstance(raw, str) or not raw or "\0" in raw:
            raise InvalidValue
        if self.holds_secret and (_NKEY_SEED.fullmatch(raw.strip()) or "\n" in raw):
            raise InvalidValue("write the secret to a file of mode 0600 and name that file")
        if raw == "~" or raw.startswith("~/"):
            raw = source.home + raw[1:]
        return str(Path(source.folder, raw))


class ServerUrl(ValueRule, frozen=True):
    """The address of a NATS server. `nats://` is put before a bare `host:port`."""

    echo: ClassVar[bool] = False
    text: ClassVar[str] = "host:port or a URL that starts with nats:// or tls://"

    def read(self, raw: object, source: ValueSource) -> str:
        """The URL with its scheme; credentials inside it stay for the reader of the NATS options."""
        if not isinstance(raw, str) or not raw or any(c.isspace() or not c.isprintable() for c in raw):
            raise InvalidValue
        url = raw if "://" in raw else f"nats://{raw}"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise InvalidValue("the port is a number from 1 to 65535") from None
        if parts.scheme not in {"nats", "tls"} or not parts.hostname or port == 0:
            raise InvalidValue
        return url

    def show(self, value: object) -> object:
        """Without credentials."""
        return hide_userinfo(value) if isinstance(value, str) else value


class Address(ValueRule, frozen=True):
    """`HOST:PORT` whose host `accepts` accepts, else `hint`; `text` describes it. Port 0 lets the system choose."""

    text: str
    accepts: Callable[[str], bool]
    hint: str

    def read(self, raw: object, source: ValueSource) -> str:
        """The address, checked."""
        if not isinstance(raw, str):
            raise InvalidValue
        host, _ = split_address(raw)
        if not self.accepts(host):
            raise InvalidValue(self.hint)
        return raw


LOOPBACK_ADDRESS: Final = Address(
    "an address of the loopback interface, such as 127.0.0.1:4637, localhost:4637 or [::1]:4637",
    is_loopback,
    "the API is for this machine only; reach it from elsewhere through ssh -L",
)
LISTEN_ADDRESS: Final = Address(
    "an IP address and a port, such as 127.0.0.1:9464, 0.0.0.0:9464 or [::]:9464",
    lambda host: is_ip_address(host) or host == "localhost",
    "to listen on all interfaces, write 0.0.0.0 or [::]",
)


def split_address(address: str) -> tuple[str, int]:
    """Host (no brackets) and port of `HOST:PORT` or `[V6]:PORT`. Raises `InvalidValue` for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535):
        raise InvalidValue("the port is a number from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if not host or ":" in host:
        raise InvalidValue("write an IPv6 address in brackets")
    return host, int(port)


def hide_userinfo(text: str) -> str:
    """`text` with the credentials of every URL in it (`//user:secret@`, or a leading `secret@`) as `***`."""
    return _USERINFO.sub(r"\1***@", text)


def show_size(size: int) -> str:
    """Bytes in the largest unit that keeps the number whole: 67108864 is `64MiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size % SIZE_UNITS[unit] == 0 and size:
            return f"{size // SIZE_UNITS[unit]}{unit}"
    return f"{size}B"
