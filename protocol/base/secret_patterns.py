"""Keys and text that are credentials in all probability, for every receiver.

The Go reference refuses more text, and some other keys: refused_text.py has its rules. Neither set includes the other.

All functions take time linear in their input, because the text may come from untrusted peers.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

Path = tuple[str | int, ...]

# Names that hold a credential, as whole words of a key: `token`, `access_token`, `apiKey`; not `tokens` or `tokenizer`.
_KEY: Final = re.compile(
    r"(?:^|_)(?:token|password|passwd|passphrase|secret|(?:api|private|secret|access)_?key|authorization|bearer|credentials?)$"
)
_WORD_STARTS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOTHING: Final[tuple[Any, ...]] = (None, "", False, True, {}, [])
# Forms of credentials under any key, each with substrings of which every match has one. The look-behinds let a match begin only
# at the start of a run of characters, so that no run is read more than a few times.
_FORMS: Final = (
    (("earer",), re.compile(r"\b[Bb]earer\s+[A-Za-z0-9._~+/-]{16,}")),
    (("PRIVATE KEY-----",), re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")),
    (("sk-", "rk-", "pk-"), re.compile(r"\b[srp]k-[A-Za-z0-9_-]{20,}")),
    (("ghp_", "gho_", "ghu_", "ghr_", "ghs_"), re.compile(r"\bgh[pousr]_[A-Za-z0-9]{30,}")),
    (("github_pat_",), re.compile(r"\bgithub_pat_[A-Za-z0-9_]{20,}")),
    (("AKIA",), re.compile(r"\bAKIA[0-9A-Z]{16}\b")),
    (("xox",), re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}")),
    (("eyJ",), re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}")),
)
_KEY_HINTS: Final = ("token", "passw", "passphrase", "secret", "key", "authorization", "bearer", "credential")
_KEY_HINT: Final = re.compile("|".join(_KEY_HINTS), re.IGNORECASE)
_SHORT: Final = 200  # characters up to which one search for all hints is cheaper than one for each
_TEXT_HINTS: Final = tuple(hint for hints, _ in _FORMS for hint in hints)
_TEXT_HINT: Final = re.compile("|".join(_TEXT_HINTS))
# The hints, grouped by a rare character (finding one character takes a tenth of the time of finding two) and by a common
# substring. The hints of "Bearer" and of private keys are found as hints of keys.
_ROOTS: Final = (
    ("-", "k-", ("sk-", "rk-", "pk-")),
    ("_", "gh", ("ghp_", "gho_", "ghu_", "ghr_", "ghs_")),
    ("_", "_pat_", ("github_pat_",)),
    ("K", "AKIA", ("AKIA",)),
    ("x", "xox", ("xox",)),
    ("J", "eyJ", ("eyJ",)),
)
_KEY_ROOTS: Final = ("token", "pass", "secret", "key", "bearer", "credential")  # of all key hints but "authorization"


def looks_like_secret_key(key: str) -> bool:
    """True for a key that names a credential."""
    if _KEY_HINT.search(key) is None:
        return False
    words = _WORD_STARTS.sub("_", key).lower().replace("-", "_").replace(" ", "_").strip("_")
    return _KEY.search(words) is not None


def looks_like_secret_text(text: str) -> bool:
    """True for text that holds a credential in one of the usual forms."""
    if len(text) <= _SHORT and _TEXT_HINT.search(text) is None:
        return False
    return any(form.search(text) is not None for hints, form in _FORMS if any(hint in text for hint in hints))


def may_hold_secrets(raw: bytes) -> bool:
    """False when no value in this JSON can look like a credential: a search in the bytes, far cheaper than `secret_paths`.

    `raw` is as our own encoder writes it: letters are never escaped.
    """
    text = raw.decode()
    for rare, root, hints in _ROOTS:
        if rare in text and root in text and any(hint in text for hint in hints):
            return True
    lowered = raw.lower().decode()
    for root in _KEY_ROOTS:  # a loop takes a sixth of the time of `any`
        if root in lowered:
            return True
    return "z" in lowered and "authorization" in lowered


def secret_paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths (keys and indices) in a JSON value that look like credentials; an empty value is none.

    A key that is itself a credential counts too.
    """
    if isinstance(value, str):
        if looks_like_secret_text(value):
            yield path
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(key, str) and names_a_secret(key, item):
                yield (*path, key)
            elif isinstance(item, str):
                if looks_like_secret_text(item):
                    yield (*path, key)
            elif isinstance(item, dict | list):
                yield from secret_paths(item, (*path, key))


def names_a_secret(key: str, item: Any) -> bool:
    """True for a key that names a credential and has a value, and for a key that is itself a credential."""
    return (looks_like_secret_key(key) and item not in _NOTHING) or looks_like_secret_text(key)


def without_secrets(text: str, replacement: str) -> str:
    """`text` with `replacement` in place of each credential in one of the usual forms."""
    for hints, form in _FORMS:
        if any(hint in text for hint in hints):
            text = form.sub(replacement, text)
    return text
