"""What the Go reference takes for credentials: found by its name, and replaced."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.base.refused_text import form_of, refused_paths, without_refused
from aghbus.protocol.formats.common import secrets_in

REFUSED = {
    "unexpected token: }": ("assignment", "unexpected token [REDACTED]"),
    "password=x, and more": ("assignment", "password [REDACTED], and more"),
    "api-key: 'a b' end": ("assignment", "api-key [REDACTED] end"),
    "my.client_secret = 1": ("assignment", "my.client_secret [REDACTED]"),
    "Code_Verifier=abc": ("assignment", "Code_Verifier [REDACTED]"),
    "DB_PASSWORD: x": ("assignment", "DB_PASSWORD [REDACTED]"),
    "ok Bearer z, visible": ("bearer", "ok Bearer [REDACTED], visible"),
    "Authorization: Basic abc\nHost: x": ("authorization", "authorization [REDACTED]\nHost: x"),
    "lease agh_claim_a-1": ("claim", "lease [REDACTED]"),
    '{"token": "abc", "a": 1}': ("quoted", '{"token [REDACTED]": "", "a": 1}'),
    "curl https://admin:pw@example.com/x": ("url", "curl https://[REDACTED]@example.com/x"),
    "deploy --password hunter2": ("flag", "deploy [REDACTED]"),
    "use sk-abcdefgh1": ("provider", "use [REDACTED]"),
    "see env:HOME and vault:a/b": ("reference", "see [REDACTED] and [REDACTED]"),
}
TAKEN = (
    "next token should remain",
    "max_tokens: 5",
    "tokens: 100",
    "token [REDACTED]",
    '{"token": null}',
    "the bearer",
    "a password",
    "http://example.com:80/",
    "keyboard: x",
    " ",
)


@pytest.mark.parametrize("text", REFUSED)
def test_a_refused_text_is_found_and_replaced(text: str) -> None:
    form, replaced = REFUSED[text]
    assert form_of(text) == form
    assert without_refused(text) == replaced
    assert form_of(replaced) is None


@pytest.mark.parametrize("text", TAKEN)
def test_other_text_stays(text: str) -> None:
    assert form_of(text) is None
    assert without_refused(text) == text


def test_the_warning_about_a_credential_is_not_refused_itself() -> None:
    (warning,) = secrets_in({"password": "x"})
    assert form_of(warning.message) is None


def test_keys_are_refused_with_a_value_only_and_named_by_their_path() -> None:
    value: dict[str, Any] = {
        "token": 0,
        "a": [{"api.key": "x"}, {"password": " "}, {"oauth-code": {"b": 1}}, {"claim_token_hash": "x"}, {"secret": []}],
        "Bearer x": 1,
        "tokens": "unexpected token: }",
    }
    assert list(refused_paths(value)) == [
        (("token",), "key"),
        (("a", 0, "api.key"), "key"),
        (("a", 2, "oauth-code"), "key"),
        (("Bearer x",), "bearer"),
        (("tokens",), "assignment"),
    ]
    assert without_refused(value) == {
        "token [REDACTED]": None,
        "a": [
            {"api.key [REDACTED]": None},
            {"password": " "},
            {"oauth-code [REDACTED]": None},
            {"claim_token_hash": "x"},
            {"secret": []},
        ],
        "Bearer [REDACTED]": 1,
        "tokens": "unexpected token [REDACTED]",
    }


_PIECES = st.sampled_from(
    [*REFUSED, *TAKEN, "token", "secret", ":", "=", " ", '"', "'", "--", "Bearer", "://", "@", "env:", "\\", "x"]
)
_TEXT = st.lists(_PIECES, max_size=9).map("".join)


@given(st.recursive(_TEXT | st.none(), lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner), max_leaves=8))
def test_nothing_refused_is_left(value: Any) -> None:
    assert list(refused_paths(without_refused(value))) == []


HOSTILE = {
    "names": "key" + "a" * 1_000_000,
    "dashes": "-" * 999_000 + "key",
    "flags": "key--a--a--a" * 80_000,
    "assignments": "token=" * 150_000,
    "quotes": '"token":"' * 100_000,
    "open quotes": 'token="' * 140_000 + "x",
    "spaces": "token" + " " * 1_000_000,
    "lines": "authorization:\n" * 60_000,
    "bearers": "bearer " * 140_000,
    "users": "://a:" * 200_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_linear_time(name: str) -> None:
    start = time.perf_counter()
    form_of(HOSTILE[name])
    without_refused(HOSTILE[name])
    assert time.perf_counter() - start < 10.0  # a tenth of that on a quiet machine
