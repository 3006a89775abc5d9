"""The parser of command lines."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.cli.app.arguments import (
    GLOBAL_OPTIONS,
    Command,
    HelpWanted,
    Option,
    Positional,
    defaults,
    lifetime,
    limit,
    parse,
    seconds,
    take_globals,
    whole,
)
from aghbus.client.errors import UsageError

COMMAND = Command(
    lambda context, values: 0,
    description="",
    examples=[],
    positionals=[Positional("TEXT", "a text"), Positional("SHELL", "a shell", optional=True, choices=("bash", "zsh"))],
    options=[
        Option("--to", "peers", "PEER", repeat=True),
        Option("--wait", "time", "TIME", convert=seconds),
        Option("--all", "everything"),
        Option("--state", "state", choices=("open", "closed")),
    ],
)


def read(*argv: str) -> tuple[dict[str, Any], dict[str, Any]]:
    options = defaults(GLOBAL_OPTIONS)
    return parse(COMMAND, argv, options), options


def test_every_declared_name_has_a_value() -> None:
    values, options = read("hello")
    assert values == {"text": "hello", "shell": None, "to": [], "wait": None, "all": False, "state": None}
    assert options == {"name": None, "socket": None, "api": None, "token_file": None, "output": None, "timeout": None}


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["x", "--to", "a", "--to=b"], "to", ["a", "b"]),
        (["--wait", "5m", "x"], "wait", 300.0),
        (["x", "--all"], "all", True),
        (["--", "--all"], "text", "--all"),
        (["-"], "text", "-"),
        (["x", "--to", "-"], "to", ["-"]),
        (["x", "--to", "-b"], "to", ["-b"]),
        (["x", "--to="], "to", [""]),
        (["x", "--to=a=b"], "to", ["a=b"]),
        (["x", "bash"], "shell", "bash"),
        (["x", "--state", "open"], "state", "open"),
    ],
)
def test_values(argv: list[str], name: str, value: object) -> None:
    assert read(*argv)[0][name] == value


@pytest.mark.parametrize("form", [["-o", "json"], ["-ojson"], ["--output", "json"], ["--output=json"]])
def test_global_options_are_understood_before_and_after(form: list[str]) -> None:
    assert read("x", *form)[1]["output"] == "json"
    assert read(*form, "x")[1]["output"] == "json"
    options = defaults(GLOBAL_OPTIONS)
    assert take_globals([*form, "--name", "ops", "status", "--all"], options) == ["status", "--all"]
    assert (options["output"], options["name"]) == ("json", "ops")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["x", "fish"],
        ["x", "bash", "more"],
        ["x", "--unknown"],
        ["x", "--al"],
        ["x", "-x"],
        ["x", "--to"],
        ["x", "--to", "--all"],
        ["x", "--all=1"],
        ["x", "--wait", "soon"],
        ["x", "--state", "ajar"],
        ["x", "-o", "xml"],
    ],
)
def test_what_is_not_declared_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        read(*argv)


def test_help_and_required_options() -> None:
    with pytest.raises(HelpWanted):
        read("x", "--help")
    needing = Command(lambda c, v: 0, description="", examples=[], options=[Option("--to", "", "PEER", required=True)])
    with pytest.raises(UsageError, match="--to PEER is required"):
        parse(needing, [], defaults(GLOBAL_OPTIONS))


def test_a_misspelt_option_is_recognised() -> None:
    with pytest.raises(UsageError) as caught:
        read("x", "--wiat", "3")
    assert "--wait" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", 30),
        ("5m", 300),
        ("24h", 86_400),
        ("7d", 604_800),
        ("1.5", 1.5),
        ("0", 0),
        ("90", 90),
        ("366d", 31_622_400),
    ],
)
def test_spans_of_time(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    "text", ["", "s", "-1", "1w", "1 m", "nan", "inf", "1e3", "٣", "1.2.3", ".", "367d", "9" * 400]
)
def test_bad_spans_of_time(text: str) -> None:
    with pytest.raises(ValueError, match="span of time"):
        seconds(text)


def test_numbers_have_bounds() -> None:
    assert whole("0") == 0
    assert limit("1000") == 1000
    for convert, text in ((whole, "-1"), (whole, "1" * 19), (limit, "0"), (limit, "1001"), (lifetime, "0s")):
        with pytest.raises(ValueError, match="must be"):
            convert(text)


@given(st.lists(st.text(max_size=8) | st.sampled_from(["--to", "--wait", "-o", "--", "--all", "-"]), max_size=6))
def test_any_command_line_is_read_or_refused(argv: list[str]) -> None:
    try:
        values, _ = read(*argv)
    except (UsageError, HelpWanted):
        return
    assert values["text"] in argv
