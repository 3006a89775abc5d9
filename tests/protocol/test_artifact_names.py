"""Artifact names, and the conversion to and from URIs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.api.artifact_uri import artifact_uri, is_part, parse_uri

PARTS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", fullmatch=True)


@given(PARTS, PARTS)
def test_a_uri_parses_to_its_parts(work_id: str, name: str) -> None:
    assert parse_uri(artifact_uri(work_id, name)) == (work_id, name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        ".hidden",
        "-rf",
        "a/b",
        "a\\b",
        "a b",
        "a\n",
        "ä",
        "a\0",
        "x" * 129,
        "a%2Fb",
        "a:b",
        "*",
        ">",
        "~",
    ],
)
def test_path_separators_and_special_names_are_refused(text: str) -> None:
    assert not is_part(text)
    assert parse_uri(f"agh://artifacts/work_1/{text}") is None
    assert parse_uri(f"agh://artifacts/{text}/name") is None


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "agh://artifacts/",
        "agh://artifacts/w",
        "agh://artifacts/w/",
        "agh://artifacts//n",
        "agh://artifacts/w/n/m",
        "http://artifacts/w/n",
        "AGH://artifacts/w/n",
        "agh://artifact/w/n",
        "agh://artifacts/../n",
        " agh://artifacts/w/n",
    ],
)
def test_other_uris_are_refused(uri: str) -> None:
    assert parse_uri(uri) is None


@given(st.text(max_size=200))
def test_every_accepted_part_is_a_plain_file_name(text: str) -> None:
    if is_part(text):
        assert text.isascii() and text.isprintable() and not set(text) & set("/\\ ") and text[0] not in ".-"
