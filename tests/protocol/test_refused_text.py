"""What the Go reference takes for credentials: found by its name, and replaced."""

import time
from typing import Any

import pytest
from hypothesis import given

from aghbus.protocol.base.refused_text import form_of, refused_paths, without_refused
from aghbus.protocol.base.secret_patterns import secret_paths
from aghbus.protocol.formats.common import secrets_in
from tests.support.reference_rule import takes, takes_text, values

REFUSED = {
    "unexpected token: }": ("assignment", "unexpected token: [REDACTED]"),
    "password=x, and more": ("assignment", "password=[REDACTED], and more"),
    "api-key: 'a b' end": ("assignment", "api-key: [REDACTED] end"),
    "my.client_secret = 1": ("assignment", "my.client_secret = [REDACTED]"),
    "Code_Verifier=abc": ("assignment", "Code_Verifier=[REDACTED]"),
    "AssertionError: password=x": ("assignment", "AssertionError: password=[REDACTED]"),
    "GET https://ci.example.com/job?token=abc 200": (
        "assignment",
        "GET https://ci.example.com/job?token=[REDACTED] 200",
    ),
    "args=Namespace(token=None, verbose=True)": ("assignment", "args=Namespace(token=[REDACTED], verbose=True)"),
    "DEBUG:root:secret=1": ("assignment", "DEBUG:root:secret=[REDACTED]"),
    "file.py:12:token=5": ("assignment", "file.py:12:token=[REDACTED]"),
    "foo=(token=x)": ("assignment", "foo=(token=[REDACTED]"),
    "key=val|token=x": ("assignment", "key=val|token=[REDACTED]"),
    "max-token: 5": ("assignment", "max-token: [REDACTED]"),
    "to\u212aen=x": ("assignment", "to\u212aen=[REDACTED]"),
    "ok Bearer z, visible": ("bearer", "ok Bearer [REDACTED], visible"),
    "Authorization: Basic abc\nHost: x": ("authorization", "Authorization: [REDACTED]\nHost: x"),
    "a lease_agh_claim_a-1": ("claim", "a lease_agh_claim_[REDACTED]"),
    '{"token": "abc", "a": 1}': ("quoted", '{"token": "[REDACTED]", "a": 1}'),
    '{"token":""}': ("quoted", '{"token":"[REDACTED]"}'),
}
TAKEN = (
    "next token should remain",
    "max_tokens: 5",
    "tokens: 100",
    "token: [REDACTED]",
    '{"token": null}',
    "the bearer",
    "a password",
    "http://example.com:80/",
    "https://u:p@host",
    "--password x",
    "sk-abcdefgh1",
    "env:HOME",
    "vault:a/b",
    "db_secret = x",
    "my_token: 5",
    "DB_PASSWORD: x",
    "AGH_CLAIM_x",
    "keyboard: x",
    " ",
)


@pytest.mark.parametrize("text", REFUSED)
def test_a_refused_text_is_found_and_replaced(text: str) -> None:
    form, replaced = REFUSED[text]
    assert not takes_text(text)
    assert form_of(text) == form
    assert without_refused(text) == replaced
    assert form_of(replaced) is None


@pytest.mark.parametrize("text", TAKEN)
def test_other_text_stays(text: str) -> None:
    assert takes_text(text)
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
            {"password [REDACTED]": None},
            {"oauth-code [REDACTED]": None},
            {"claim_token_hash": "x"},
            {"secret": []},
        ],
        "Bearer [REDACTED]": 1,
        "tokens": "unexpected token: [REDACTED]",
    }


@given(values())
def test_the_rule_is_the_one_of_the_reference(value: Any) -> None:
    assert takes(value, None) == (next(refused_paths(value), None) is None)


@given(values("\u017fecret"))  # found also where the reference takes it
def test_what_is_replaced_is_taken(value: Any) -> None:
    left = without_refused(value)
    assert takes(left, None)
    assert list(secret_paths(left)) == []


HOSTILE = {
    "names": "key" + "a" * 1_000_000,
    "dashes": "-" * 999_000 + "key",
    "assignments": "token=" * 150_000,
    "urls": "a:token?" * 120_000,
    "quotes": '"token":"' * 100_000,
    "open quotes": 'token="' * 140_000 + "x",
    "line ends": '"token":"\\\n' * 90_000,
    "spaces": "token" + " " * 1_000_000,
    "lines": "authorization:\n" * 60_000,
    "bearers": "bearer " * 140_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_linear_time(name: str) -> None:
    start = time.perf_counter()
    form_of(HOSTILE[name])
    without_refused(HOSTILE[name])
    assert time.perf_counter() - start < 10.0  # a tenth of that on a quiet machine
