"""The mapping between works and Synadia's agent protocol, for any names and texts."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.api.artifact_uri import is_part
from aghbus.protocol.formats.synadia import names, permissions, prompt, reply

PEERS = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,127}(@[a-f0-9]{32})?", fullmatch=True)
WORDS = st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True)
# One word of a subject, of the characters that the protocol has for owners and sessions.
IS_TOKEN = st.from_regex(r"[a-z0-9_-]{1,64}", fullmatch=True)


@given(st.lists(PEERS | st.text(min_size=1), unique=True, max_size=20))
def test_sessions_are_one_word_each_and_different_for_different_names(given_names: list[str]) -> None:
    found = [names.session(name) for name in given_names]
    assert all(0 < len(each) <= 64 and set(each) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") for each in found)
    assert len(set(found)) == len(found)


@given(IS_TOKEN)
def test_a_name_that_can_be_a_session_is_the_session(name: str) -> None:
    assert names.session(name) == name


@given(st.lists(st.text(), max_size=10))
def test_artifact_names_are_legal_and_different(filenames: list[str]) -> None:
    taken: dict[str, None] = {}
    for filename in filenames:
        taken[names.artifact_name(filename, taken)] = None
    assert len(taken) == len(filenames)
    assert all(map(is_part, taken))


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        ("report.xml", "report.xml"),
        ("../../.ssh/id rsa.pub", "id_rsa.pub"),
        (r"C:\temp\a.txt", "a.txt"),
        ("", "attachment"),
        ("...", "attachment"),
        (".env", "env"),
        ("_x", "_x"),
    ],
)
def test_an_artifact_has_the_last_part_of_the_file_name(filename: str, name: str) -> None:
    assert names.artifact_name(filename, ()) == name


@given(WORDS, WORDS, WORDS)
def test_a_selector_means_the_agents_that_it_names(agent: str, owner: str, session: str) -> None:
    there = names.address(agent, owner, session)
    assert there is not None
    for text in (agent, f"{agent}/{owner}", f"{agent}/{owner}/{session}"):
        one = names.selector(text)
        assert str(one) == text
        assert one.matches(there)
        assert one.capability == f"synadia.{text.replace('/', '.')}"
        assert not one.matches(names.Address(agent + "x", owner, session))
    assert not names.selector(f"{agent}/{owner}/{session}").matches(names.Address(agent, owner, session + "x"))


@pytest.mark.parametrize("text", ["", "a/", "/a", "a/b/c/d", "a b", "a.b", "a*"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be AGENT, AGENT/OWNER or AGENT/OWNER/SESSION"):
        names.selector(text)


def test_an_agent_with_names_that_no_capability_can_have_is_left() -> None:
    assert names.address("agent", "owner", "") is None
    assert names.address("agent", "own.er", "s") is None


def test_principals() -> None:
    key = "UB43KVROR7TFJ6KAPCYRF2FJROTZAH4FHLTJLPWX4DRZCC5NASLGJBFE"
    assert names.principal(None) == {"name": "anonymous", "via": "synadia"}
    assert names.principal(key) == {"name": key, "via": "synadia"}
    # SHA-256 of "$G.x"
    assert names.principal("$G.x") == {"name": "h_250cdbce5e7ad23d0bb7d730c640e018", "via": "synadia"}


@given(st.text(), st.integers(12, 500))
def test_pieces_are_the_text_and_fit(text: str, limit: int) -> None:
    found = list(reply.pieces(text, limit))
    assert "".join(found) == text
    assert all(each and (len(json.dumps(each)) <= limit or len(each) == 1) for each in found)


@given(st.none() | st.text(), st.none() | st.text(), st.none() | st.sampled_from(["busy", "expired", "internal"]))
def test_a_description_is_a_short_line_of_ascii_that_names_the_work(
    message: str | None, detail: str | None, reason: str | None
) -> None:
    found = reply.reply("work_1", "failed", message, None, reason, detail)
    assert found.code >= 400
    assert len(found.description) <= 200
    assert found.description.isascii()
    assert found.description.isprintable()
    assert found.description.startswith("failed")
    assert found.description.endswith(" [work work_1]")


@pytest.mark.parametrize(
    ("state", "message", "result", "reason", "text", "code"),
    [
        ("completed", "last line", {"exit_code": 0, "stdout": "first\nlast line\n"}, None, "first\nlast line\n", 0),
        ("completed", None, {"exit_code": 0, "output": {"a": 1}}, None, '{\n  "a": 1\n}', 0),
        ("completed", "done", {"a": 1}, None, "done", 0),
        ("completed", None, {"a": 1}, None, '{\n  "a": 1\n}', 0),
        ("completed", None, None, None, "", 0),
        ("failed", "broken", {"exit_code": 1}, None, "", 500),
        ("failed", "broken\nin two lines", None, None, "broken\nin two lines", 500),
        ("failed", None, None, "busy", "", 503),
        ("failed", None, None, "unsupported_profile", "", 422),
        ("canceled", None, None, None, "", 410),
    ],
)
def test_the_end_of_a_work(
    state: str, message: str | None, result: object, reason: str | None, text: str, code: int
) -> None:
    found = reply.reply("work_1", state, message, result, reason)
    assert (found.text, found.code) == (text, code)
    assert (None if found.result is None else json.loads(found.result)) == result


@given(st.binary())
def test_content_is_strict_base64(octets: bytes) -> None:
    text = base64.b64encode(octets).decode()
    assert prompt.content(text) == octets
    assert prompt.content(f"{text}\n") is None
    assert prompt.content(f"{text}é") is None


@given(st.text())
def test_a_report_is_the_last_line_that_is_not_blank(text: str) -> None:
    found = prompt.report(text)
    assert len(found) <= 500
    assert not found or found.removesuffix("…") in text
    assert found.splitlines() in ([], [found])


def test_the_prompt_of_a_capability_is_its_document() -> None:
    assert prompt.prompt_text({"text": "do it"}) == "do it"
    assert json.loads(prompt.prompt_text({"capability": {"id": "test.run"}})) == {"id": "test.run"}


def test_a_long_answer_is_an_excerpt_and_a_file() -> None:
    assert prompt.answer("short") == ("short", None)
    assert prompt.answer(" \n") == (None, None)
    message, whole = prompt.answer("ä" * 100_001)
    assert message == "ä" * 3_999 + "…"
    assert whole == ("ä" * 100_001).encode()


def test_no_direction_may_publish_where_daemons_listen() -> None:
    for direction in ("serve", "join"):
        publish, _ = permissions.permissions(direction)
        assert not [subject for subject in publish if subject.startswith(("agh.", "_INBOX.>", ">"))]
