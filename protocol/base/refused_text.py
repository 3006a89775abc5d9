"""Text and keys that the Go reference takes for credentials: it drops an envelope whose body or ext has one.

Its rules are wider than ours (secret_patterns.py): `unexpected token: }` is refused, too. Covered are the rules of its versions
up to July 2026. All functions take time linear in their input, because the text may come from untrusted peers.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from aghbus.protocol.base.secret_patterns import Path

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
_PARTS: Final = (
    "apikey", "authorization", "authtoken", "accesstoken", "bottoken", "claimtoken", "clientsecret", "codeverifier",
    "credential", "idtoken", "leasetoken", "oauthcode", "oauthtoken", "password", "pkceverifier", "privatekey",
    "refreshtoken", "secretbinding", "secretref", "webhooksecret",
)  # fmt: skip
_ENDS: Final = ("secret", "token")
_SEPARATORS: Final = str.maketrans("", "", "_-.")
_BLANK: Final[tuple[Any, ...]] = (None, [], {})
_MAX_PASSES: Final = 4  # of replacing: what one leaves has another form at most


def _names_credential(name: str) -> bool:
    """Whether a name that is assigned a value in a text names a credential."""
    plain = name.lower().translate(_SEPARATORS)
    return plain.endswith(_ENDS) or any(part in plain for part in _PARTS)


class _Form(NamedTuple):
    """One form of a credential in a text. Every match has one of `hints`, in any case.

    Where the pattern has a group `name`, that must name a credential. `replacement` has NAME in its place.
    """

    name: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    replacement: str

    def found(self, text: str) -> bool:
        """Whether the text has this form."""
        return any(map(self._counts, self.pattern.finditer(text)))

    def replaced(self, text: str) -> str:
        """The text without this form."""
        return self.pattern.sub(self._replacement, text)

    def _counts(self, match: re.Match[str]) -> bool:
        return match.lastgroup is None or _names_credential(match["name"])

    def _replacement(self, match: re.Match[str]) -> str:
        if match.lastgroup is None:
            return self.replacement
        name = match["name"]
        return self.replacement.replace("NAME", name) if _names_credential(name) else match[0]


# A run of characters is read from its start only, so that no run is read more than a few times.
_NAME: Final = r"(?P<name>[a-z0-9_.-]+)"
_NAMES: Final = ("key", "token", "secret", "password", "credential", "authorization", "oauth", "verifier")
_VALUE: Final = r"(?:\"[^\"]*\"|'[^']*'|[^\s,;]+)"
_PROVIDERS: Final = (
    "sk-",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "xoxr-",
    "xoxs-",
    "xapp-",
)
_FORMS: Final = tuple(
    _Form(name, hints, re.compile(pattern, re.ASCII | re.IGNORECASE), replacement)
    for name, hints, pattern, replacement in (
        (
            "authorization",
            ("authorization",),
            r"\b(?:proxy[-_])?authorization\b\s*[=:]\s*[^\r\n,;]+",
            f"authorization {REPLACEMENT}",
        ),
        ("bearer", ("bearer",), r"\bbearer\s+[a-z0-9._~+/=-]+", f"Bearer {REPLACEMENT}"),
        ("claim", ("agh_claim_",), r"\bagh_claim_[a-z0-9_-]+", REPLACEMENT),
        ("url", ("://",), r"(?<=://)[^/@\s:]+:[^/@\s]+@", f"{REPLACEMENT}@"),
        ("provider", _PROVIDERS, rf"\b(?:{'|'.join(_PROVIDERS)})[a-z0-9_-]{{8,}}", REPLACEMENT),
        (
            "quoted",
            _NAMES,
            rf"[\"']{_NAME}[\"']\s*:\s*[\"'](?:\\.|[^\\\"'])*[\"']?",
            f'"NAME {REPLACEMENT}": ""',
        ),
        ("assignment", _NAMES, rf"(?<![a-z0-9_.-]){_NAME}\s*[=:]\s*{_VALUE}", f"NAME {REPLACEMENT}"),
        ("flag", _NAMES, rf"(?<![a-z0-9_.-])--{_NAME}\s+{_VALUE}", REPLACEMENT),
        ("reference", ("env:", "vault:"), r"\b(?:env:[a-z_]\w*|vault:(?://)?[\w./-]+)", REPLACEMENT),
    )
)


def form_of(text: str) -> str | None:
    """The name of the form in which `text` has a credential for the reference; None if it takes it."""
    lowered = text.lower()
    for form in _FORMS:
        if any(hint in lowered for hint in form.hints) and form.found(text):
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
    """A copy of a JSON value in which nothing is refused: the value of a refused key, and each match in a text, is replaced."""
    if isinstance(value, str):
        return _replaced(value)
    if isinstance(value, list):
        return [without_refused(item) for item in value]
    if isinstance(value, dict):
        return dict(_member(key, item) for key, item in value.items())
    return value


def _member(key: str, item: Any) -> tuple[str, Any]:
    if _is_refused_key(key, item):
        return f"{_replaced(key)} {REPLACEMENT}", None
    return _replaced(key), without_refused(item)


def _is_refused_key(key: str, item: Any) -> bool:
    plain = key.strip().lower().translate(_SEPARATORS)
    return plain in _KEYS and item not in _BLANK and not (isinstance(item, str) and not item.strip())


def _replaced(text: str) -> str:
    if form_of(text) is None:
        return text
    for _ in range(_MAX_PASSES):
        before = text
        lowered = text.lower()
        for form in _FORMS:
            if any(hint in lowered for hint in form.hints):
                text = form.replaced(text)
        if text == before:
            return text
    return text if form_of(text) is None else REPLACEMENT
