"""Which envelopes the Go reference drops because of text like a credential: an oracle, without the shortcuts of the product.

Facts: its validation in May 2026. It replaces step by step what it takes for a credential, and refuses a text that changes.
"""

import re
from typing import Any, Final

from hypothesis import strategies as st

from aghbus.protocol.base.text import is_blank, trim

MARK: Final = "[REDACTED]"

# Go's classes are ASCII. Without regard to case, it takes the long s for an s, and the Kelvin sign for a k, but never as word
# characters.
_WORD: Final = "(?-i:[0-9A-Za-z_])"
_EDGE: Final = f"(?:(?<={_WORD})(?!{_WORD})|(?<!{_WORD})(?={_WORD}))"
_GAP: Final = "[ \t\r\n\f]*"
_KEYS: Final = (
    "api[_-]?key|access[_-]?token|refresh[_-]?token|mcp[_-]?auth[_-]?token|claim[_-]?token|lease[_-]?token|bot[_-]?token"
    "|oauth[_-]?code|authorization[_-]?code|oauth[_-]?client[_-]?secret|client[_-]?secret|webhook[_-]?secret"
    "|code[_-]?verifier|pkce[_-]?verifier|secret[_-]?binding|token|secret|password|authorization"
)
_LETTERS: Final = {"s": "[s\u017f]", "k": "[k\u212a]"}
_NAME: Final = "".join(_LETTERS.get(char, char) for char in _KEYS)

_HEADER: Final = re.compile(f"(?ai){_EDGE}((?:proxy[-_])?authorization){_EDGE}({_GAP}[=:]{_GAP})([^\r\n,;]+)")
_BEARER: Final = re.compile(f"(?ai){_EDGE}bearer[ \t\r\n\f]+[a-z0-9\u017f\u212a._~+/=-]+")
_CLAIM: Final = re.compile("agh_claim_[A-Za-z0-9_-]+")
_MEMBER: Final = re.compile(f"(?ai)([\"'])({_NAME})([\"'])({_GAP}:{_GAP})([\"'])(?:\\\\.|[^\\\\])*?([\"'])")
_ASSIGNED: Final = re.compile(f"(?ai){_EDGE}({_NAME}){_EDGE}({_GAP}[=:]{_GAP})(\"[^\"]*\"|'[^']*'|[^ \t\r\n\f,;]+)")
_REFUSED_KEYS: Final = {
    "apikey", "accesstoken", "refreshtoken", "mcpauthtoken", "oauthcode", "authorizationcode", "codeverifier", "pkceverifier",
    "secretbinding", "clientsecret", "authorization", "password", "secret", "token", "claimtoken",
}  # fmt: skip


def takes(body: Any, ext: dict[str, Any] | None) -> bool:
    """Whether the reference takes an envelope with this body and ext. The keys of ext itself are not looked at."""
    return not any(_refused("", value) for value in (body, *(ext or {}).values()))


def takes_text(text: str) -> bool:
    """Whether the reference takes this text."""
    left = _CLAIM.sub(f"agh_claim_{MARK}", text)
    left = _HEADER.sub(_third, left)
    left = _BEARER.sub(f"Bearer {MARK}", left)
    left = _MEMBER.sub(rf"\1\2\3\4\5{MARK}\6", left)
    left = _ASSIGNED.sub(_third, left)
    return left == text


def _third(match: re.Match[str]) -> str:
    """The match is searched again by itself, where a long s at its start has no boundary before it."""
    again = match.re.search(match[0])
    if again is None or any(mark in again[3] for mark in (MARK, "__AGH_REDACTED")):
        return match[0]
    return again[1] + again[2] + MARK


def _refused(key: str, value: Any) -> bool:
    if not takes_text(key) or (_names(key) and _has_value(value)):
        return True
    if isinstance(value, str):
        return not takes_text(value)
    if isinstance(value, list):
        return any(_refused("", item) for item in value)
    return isinstance(value, dict) and any(_refused(name, item) for name, item in value.items())


def _names(key: str) -> bool:
    plain = "".join("i" if char == "\u0130" else char.lower() for char in trim(key) if char not in "_-.")
    return plain in _REFUSED_KEYS


def _has_value(value: Any) -> bool:
    return not is_blank(value) if isinstance(value, str) else value is not None and value != [] and value != {}


PIECES: Final = (
    "token", "ToKen", "to\u212aen", "secret", "api key", "api_key", "password", "authorization", "pro\u212ay-", "Code_Verifier",
    "Bearer", "bearer z", "agh_claim_", "AGH_CLAIM_x", "[REDACTED]", "__AGH_REDACTED", "AssertionError: password=x", "DEBUG:root:",
    "api-key: 'a b' end", "Authorization: Basic abc\n", '{"token": "abc", "a": 1}', '"secret":""', "token: [REDACTED]", "tokens: 1",
    "https://u:p@host", "--password x", "sk-abcdefgh1", "env:HOME", "my_token: 5", "job?token=abc 200", "ghp_" + "a1" * 18,
    ":", "=", " ", "\n", "\v", "\x1c", "\xa0", '"', "'", ",", ";", "_", "-", "\\", "\\\n", "://", "@", "x", "\u0130", "{", "}",
    "?", "&", "(", ")", "|",
)  # fmt: skip


def values(*more: str) -> st.SearchStrategy[Any]:
    """JSON values with texts and keys made of PIECES and `more`."""
    text = st.lists(st.sampled_from((*PIECES, *more)), max_size=9).map("".join)
    leaf = text | st.none() | st.just(0)
    return st.recursive(leaf, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=8)
