"""Text and keys that the Go reference takes for credentials: it drops an envelope whose body or ext has one.

Its rules (those of May 2026, its last version on NATS) are wider than ours (secret_patterns.py): `unexpected token: }` is refused,
too. All functions take time linear in their input, because the text may come from untrusted peers.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from aghbus.protocol.base.secret_patterns import Path, names_a_secret, without_secrets
from aghbus.protocol.base.text import is_blank, trim

REPLACEMENT: Final = "[REDACTED]"
"""What stands in place of a refused text. The reference accepts it."""

KEY: Final = "key"
"""The form of a key that names a credential and has a value."""

_KEYS: Final = frozenset(
    [
        "accesstoken", "apikey", "authorization", "authorizationcode", "claimtoken", "clientsecret", "codeverifier",
        "mcpauthtoken", "oauthcode", "password", "pkceverifier", "refreshtoken", "secret", "secretbinding", "token",
    ]
)  # fmt: skip
_SEPARATORS: Final = str.maketrans("\u0130", "i", "_-.")  # in Go, I with a dot is "i" in lower case
_BLANK: Final[tuple[Any, ...]] = (None, [], {})
_MAX_PASSES: Final = 8  # of replacing, before the whole text is replaced
_MARKS: Final = (REPLACEMENT, "__AGH_REDACTED")

# Regular expressions of Go: classes and boundaries are ASCII, but in any case "s" is the long s, too, and "k" the Kelvin sign.
_SPACE: Final = r"[\t\n\f\r ]"
_FOLDED: Final = {"s": "[s\u017f]", "k": "[k\u212a]"}
_NAMES: Final = (
    "api key", "access token", "refresh token", "mcp auth token", "claim token", "lease token", "bot token", "oauth code",
    "authorization code", "oauth client secret", "client secret", "webhook secret", "code verifier", "pkce verifier",
    "secret binding", "token", "secret", "password", "authorization",
)  # fmt: skip
_NAME_HINTS: Final = ("key", "token", "code", "secret", "verifier", "password", "authorization")


def _folded(words: str) -> str:
    return "".join(_FOLDED.get(char, char) for char in words)


_NAME: Final = "(?:" + "|".join("[_-]?".join(map(_folded, name.split())) for name in _NAMES) + ")"


class _Form(NamedTuple):
    """One form of a credential in a text: the group `value` of each match. Every match has one of `hints`, case-folded.

    A value that is the replacement stays; if `marked`, one that contains a mark.
    """

    name: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    marked: bool = False

    def found(self, text: str) -> bool:
        """Whether the text has this form."""
        return any(map(self._is_refused, self.pattern.finditer(text)))

    def replaced(self, text: str) -> str:
        """The text without this form."""
        return self.pattern.sub(self._replacement, text)

    def _is_refused(self, match: re.Match[str]) -> bool:
        value = match["value"]
        return not any(mark in value for mark in _MARKS) if self.marked else value != REPLACEMENT

    def _replacement(self, match: re.Match[str]) -> str:
        if not self._is_refused(match):
            return match[0]
        start, end = (at - match.start() for at in match.span("value"))
        return f"{match[0][:start]}{REPLACEMENT}{match[0][end:]}"


def _form(name: str, hints: tuple[str, ...], pattern: str, *, marked: bool = False) -> _Form:
    return _Form(name, hints, re.compile(pattern, re.ASCII | re.IGNORECASE), marked)


_FORMS: Final = (
    _form("claim", ("agh_claim_",), r"(?-i:agh_claim_(?P<value>[A-Za-z0-9_-]+))"),
    _form(
        "authorization",
        ("authorization",),
        rf"\b(?:proxy[-_])?authorization\b{_SPACE}*[=:]{_SPACE}*(?P<value>[^\r\n,;]+)",
        marked=True,
    ),
    _form("bearer", ("bearer",), rf"\bbearer{_SPACE}+(?P<value>[a-z0-9\u017f\u212a._~+/=-]+)"),
    _form(
        "quoted",
        _NAME_HINTS,
        rf"[\"']{_NAME}[\"']{_SPACE}*:{_SPACE}*[\"'](?P<value>(?:\\.|[^\\])*?)[\"']",
    ),
    _form(
        "assignment",
        _NAME_HINTS,
        rf"\b{_NAME}\b{_SPACE}*[=:]{_SPACE}*(?P<value>\"[^\"]*\"|'[^']*'|[^\t\n\f\r ,;]+)",
        marked=True,
    ),
)


def form_of(text: str) -> str | None:
    """The name of the form in which `text` has a credential for the reference; None if it takes it."""
    folded = text.casefold()
    for form in _FORMS:
        if any(hint in folded for hint in form.hints) and form.found(text):
            return form.name
    return None


def refused_paths(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """The paths (keys and indices) in a JSON value that the reference refuses, each with the name of its form."""
    if isinstance(value, str):
        if (form := form_of(value)) is not None:
            yield path, form
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from refused_paths(item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            form = KEY if _is_refused_key(key, item) else form_of(key)
            if form is not None:
                yield (*path, key), form
            else:
                yield from refused_paths(item, (*path, key))


def without_refused(value: Any) -> Any:
    """A copy of a JSON value without what the reference refuses, and without what `secret_paths` finds.

    The value of a key that names a credential, and each match in a text, is replaced.
    """
    if isinstance(value, str):
        return _replaced(value)
    if isinstance(value, list):
        return [without_refused(item) for item in value]
    if isinstance(value, dict):
        return dict(_member(key, item) for key, item in value.items())
    return value


def _member(key: str, item: Any) -> tuple[str, Any]:
    if _is_refused_key(key, item) or names_a_secret(key, item):
        return f"{_replaced(key)} {REPLACEMENT}", None
    return _replaced(key), without_refused(item)


def _is_refused_key(key: str, item: Any) -> bool:
    plain = trim(key).translate(_SEPARATORS).lower()
    return plain in _KEYS and item not in _BLANK and not (isinstance(item, str) and is_blank(item))


def _replaced(text: str) -> str:
    for _ in range(_MAX_PASSES):
        before = text
        text = without_secrets(text, REPLACEMENT)
        folded = text.casefold()
        for form in _FORMS:
            if any(hint in folded for hint in form.hints):
                text = form.replaced(text)
        if text == before:
            return text
    return REPLACEMENT
