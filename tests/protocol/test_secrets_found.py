"""Detection of credentials in keys and text, in linear time."""

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.base.secret_patterns import (
    looks_like_secret_key,
    looks_like_secret_text,
    may_hold_secrets,
    secret_paths,
)

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"  # made up after RFC 7519
TEXTS = (
    "Authorization: Bearer 0123456789abcdef0123",
    "bearer\n0123456789abcdef0123",
    "-----BEGIN PRIVATE KEY-----\nMC4CAQ",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "use sk-proj_0123456789abcdefghij here",
    "ghp_0123456789abcdefghijklmnopqrstuv",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-0123456789-abc",
    JWT,
    f"cookie={JWT};",
)
PLAIN = (
    "the bearer of this letter",
    "a token ring has tokens",
    "-----BEGIN PUBLIC KEY-----",
    "task-force-of-many-people-and-more",
    "AKIAIOSFODNN7EXAMPLE0lower",
    "eyJ.eyJ.eyJ",
    "ask-0123456789abcdefghijkl",
)
KEYS = (
    "token", "access_token", "accessToken", "ACCESS-TOKEN", "password", "db_password", "passwd", "api_key", "apiKey", "APIKey",
    "x-api-key", "api key", "private_key", "secret", "client_secret", "authorization", "Authorization", "bearer", "credentials",
    "aws_secret_access_key", "HTTPToken",
)  # fmt: skip
HARMLESS = ("tokens", "tokenizer", "max_tokens", "token_count", "keyboard", "secretary", "monkey", "key", "passage", "")


@pytest.mark.parametrize("text", TEXTS)
def test_text_with_a_credential_is_found(text: str) -> None:
    assert looks_like_secret_text(text)
    long = "x " * 500 + text  # beyond the length up to which one look serves for all forms
    assert looks_like_secret_text(long)
    assert list(secret_paths({"body": ["a", {"text": text}]})) == [("body", 1, "text")]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_is_not_a_credential(text: str) -> None:
    assert not looks_like_secret_text(text)
    assert not looks_like_secret_text("x " * 500 + text)


def test_keys_that_name_a_credential_are_found() -> None:
    assert [key for key in KEYS if not looks_like_secret_key(key)] == []
    assert [key for key in HARMLESS if looks_like_secret_key(key)] == []


def test_every_path_is_reported_once_and_empty_values_are_ignored() -> None:
    value: dict[str, Any] = {
        "token": "x",
        "password": "",
        "secret": None,
        "credentials": {},
        "api_key": 0,
        "deep": [{"token": {"kid": 1}}, "Bearer 0123456789abcdef"],
        TEXTS[5]: 1,
    }
    assert list(secret_paths(value)) == [("token",), ("deep", 0, "token"), ("deep", 1), (TEXTS[5],)]


_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8) | st.sampled_from(TEXTS + PLAIN),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=6) | st.sampled_from(KEYS + HARMLESS + TEXTS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(_JSON)
def test_the_search_in_the_bytes_misses_no_credential(value: Any) -> None:
    if list(secret_paths(value)):
        assert may_hold_secrets(msgspec.json.encode(value))


def test_the_search_in_the_bytes_skips_ordinary_messages() -> None:
    assert not may_hold_secrets(b'{"body":{"text":"Run the migration smoke test","intent":"request"}}')


HOSTILE = {
    "jwt starts": "-eyJaaaaaaaaaa" * 74_000,
    "jwt runs": "eyJ" + "a" * 1_000_000,
    "jwt dots": "eyJ." * 260_000,
    "bearer": "bearer " * 149_000,
    "spaces": "Bearer" + " " * 1_000_000,
    "begin": "-----BEGIN A" * 87_000,
    "begin long": "-----BEGIN " + "A " * 500_000,
    "dashes": "sk-" * 6 + "-" * 1_000_000,
    "akia": "AKIA" * 262_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_linear_time(name: str) -> None:
    """A megabyte that is read again from each of its places takes minutes."""
    start = time.perf_counter()
    list(secret_paths({"text": HOSTILE[name]}))
    assert time.perf_counter() - start < 5.0  # a hundredth of that on a quiet machine


def test_a_megabyte_of_keys_and_short_strings_is_searched_quickly() -> None:
    for value in ({f"key{number}": number for number in range(90_000)}, {"a": ["x"] * 260_000}, {"a": [1] * 500_000}):
        start = time.perf_counter()
        assert list(secret_paths(value)) == []
        assert time.perf_counter() - start < 5.0  # a tenth of that on a quiet machine
