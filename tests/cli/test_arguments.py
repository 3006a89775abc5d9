"""Command lines: accepted forms, and the errors of the others."""

import sys
import time
import types
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.cli.app.arguments import GLOBAL_OPTIONS, lifetime, limit, seconds, since, whole
from aghbus.host.command_line import Argument, Command, CommandLineError, HelpRequested, Program

SAY = Command(
    lambda context, values: 0,
    description="Say something.",
    examples=["prog say hello"],
    arguments=[
        Argument("text", help="a text"),
        Argument("shell", nargs="?", choices=("bash", "zsh"), help="a shell"),
        Argument("--to", metavar="PEER", action="append", help="peers"),
        Argument("--wait", metavar="TIME", type=seconds, help="time, 50% of it"),
        Argument("--all", action="store_true", help="everything"),
        Argument("--state", choices=("open", "closed"), synonyms={"done": "closed"}, help="state"),
    ],
)
RUN = Command(
    lambda context, values: 0,
    description="",
    examples=[],
    arguments=[
        Argument("-v", "--verbose", action="count", default=0, help="more"),
        Argument("--log", action="switch", help="a log"),
    ],
)
NEED = Command(
    lambda context, values: 0,
    description="",
    examples=[],
    arguments=[Argument("--to", metavar="PEER", required=True, help="a peer"), Argument("--text", help="a text")],
)
SHOW = Command(
    lambda context, values: 0,
    description="",
    examples=[],
    arguments=[
        Argument("work", unless="--last", help="a work"),
        Argument("text", nargs="?", help="a text"),
        Argument("--last", action="store_true", help="the last work"),
    ],
)
SERVE = Command(
    lambda context, values: 0,
    description="",
    examples=[],
    arguments=[Argument("format", help="a format"), Argument("command", nargs="*", help="a command")],
    trailing="command",
)


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    """A program of one module, defined here."""
    module = types.ModuleType("some_commands.one")
    module.__dict__["COMMANDS"] = {"say": SAY, "work need": NEED, "work show": SHOW, "serve": SERVE, "run": RUN}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "some_commands", types.ModuleType("some_commands"))
        patch.setitem(sys.modules, "some_commands.one", module)
        yield Program(
            "prog",
            description="A program.",
            package="some_commands",
            commands=dict.fromkeys(("say", "work need", "work show", "serve", "run"), ("one", "one line")),
            groups={"work": "works"},
            habits={"ps": "work show", "work get": "work show"},
            global_arguments=GLOBAL_OPTIONS,
        )


def test_every_declared_name_has_a_value(program: Program) -> None:
    assert program.parse(["say", "hello"])[1] == {
        "text": "hello",
        "shell": None,
        "to": [],
        "wait": None,
        "all": False,
        "state": None,
        "name": None,
        "socket": None,
        "api": None,
        "token_file": None,
        "output": None,
        "color": None,
        "timeout": None,
    }


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["x", "--to", "a", "--to=b"], "to", ["a", "b"]),
        (["--wait", "5m", "x"], "wait", 300.0),
        (["x", "--all"], "all", True),
        (["--", "--all"], "text", "--all"),
        (["-"], "text", "-"),
        (["- two words"], "text", "- two words"),
        (["-1"], "text", "-1"),
        (["x", "--to", "-"], "to", ["-"]),
        (["x", "--to=-b"], "to", ["-b"]),
        (["x", "--to="], "to", [""]),
        (["x", "--to=a=b"], "to", ["a=b"]),
        (["x", "bash"], "shell", "bash"),
        (["x", "--all", "bash"], "shell", "bash"),
        (["x", "--state", "open"], "state", "open"),
    ],
)
def test_values(program: Program, argv: list[str], name: str, value: object) -> None:
    assert program.parse(["say", *argv])[1][name] == value


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], (0, None, None)),
        (["-v", "--verbose"], (2, None, None)),
        (["-vv", "--log"], (2, True, None)),
        (["--log", "--no-log"], (0, False, None)),
        (["-vo", "json"], (1, None, "json")),
        (["-vvojson"], (2, None, "json")),
    ],
)
def test_options_without_values(
    program: Program, argv: list[str], expected: tuple[int, bool | None, str | None]
) -> None:
    values = program.parse(["run", *argv])[1]
    assert (values["verbose"], values["log"], values["output"]) == expected


@pytest.mark.parametrize(
    ("argv", "work", "text"),
    [(["a"], "a", None), (["a", "b"], "a", "b"), (["--last"], None, None), (["b", "--last"], None, "b")],
)
def test_an_option_takes_the_place_of_an_argument(
    program: Program, argv: list[str], work: str | None, text: str | None
) -> None:
    values = program.parse(["work", "show", *argv])[1]
    assert (values["work"], values["text"], values["last"]) == (work, text, "--last" in argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--log=1"], "--log/--no-log: takes no value, not '1'"),
        (["-v=1"], "-v/--verbose: takes no value, not '1'"),
        (["-vx"], "-v/--verbose: takes no value, not 'x'"),
    ],
)
def test_an_option_without_a_value_is_given_none(program: Program, argv: list[str], message: str) -> None:
    with pytest.raises(CommandLineError) as caught:
        program.parse(["run", *argv])
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["xml"], []),
        (["xml", "--", "cat", "-n", "--help"], ["cat", "-n", "--help"]),
        (["--", "cat"], None),
        (["xml", "--", "env", "--", "cat"], ["env", "--", "cat"]),
        (["xml", "cat"], ["cat"]),
    ],
)
def test_everything_after_two_dashes_is_the_trailing_argument(
    program: Program, argv: list[str], command: list[str] | None
) -> None:
    if command is None:
        with pytest.raises(CommandLineError, match="FORMAT"):
            program.parse(["serve", *argv])
    else:
        assert program.parse(["serve", *argv])[1]["command"] == command


@pytest.mark.parametrize("form", [["-o", "json"], ["-ojson"], ["--output", "json"], ["--output=json"]])
def test_global_options_are_understood_before_between_and_after(program: Program, form: list[str]) -> None:
    for words in (["say", "x", *form], ["say", *form, "x"], [*form, "say", "x"], [*form, "--name", "ops", "say", "x"]):
        values = program.parse(words)[1]
        assert (values["output"], values["text"]) == ("json", "x")
    assert program.parse(["work", *form, "need", "--to", "p"])[0] is NEED


@pytest.mark.parametrize(
    "argv",
    [
        [],
        [""],
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
        ["x", "--name", ""],
    ],
)
def test_an_undeclared_or_invalid_argument_is_refused(program: Program, argv: list[str]) -> None:
    with pytest.raises(CommandLineError):
        program.parse(["say", *argv])


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["say", "x", "--wiat", "3"], "unknown option --wiat", "did you mean --wait?"),
        (["work", "need", "--too", "p"], "unknown option --too", "did you mean --to?"),
        (["--namex", "ops", "say", "x"], "unknown option --namex", "did you mean --name?"),
        (["--nmae", "x", "say"], "unknown option --nmae", "did you mean --name?"),
        (["sya"], "unknown command sya", "did you mean say?"),
        (["work", "nede"], "unknown command work nede", "did you mean work need?"),
        (["wrok"], "unknown command wrok", "did you mean work?"),
        (["xyz"], "unknown command xyz", "prog --help lists all"),
        (["work"], "work: which command?", "one of: need, show"),
        ([], "which command?", "prog --help lists all"),
        (["need"], "unknown command need", "did you mean work need?"),
        (["ps"], "unknown command ps", "did you mean work show?"),
        (["work", "get"], "unknown command work get", "did you mean work show?"),
        (["-name", "ops", "say", "x"], "unknown option -name", "did you mean --name?"),
        (["say", "x", "-state=open"], "unknown option -state", "did you mean --state?"),
        (["say", "x", "-output", "json"], "unknown option -output", "did you mean --output?"),
        (["say", "x", "--state", "opne"], "--state: invalid choice: 'opne'", "did you mean open?"),
        (["say", "x", "--state", "done"], "--state: invalid choice: 'done'", "did you mean closed?"),
        (["work", "show"], "the following arguments are required: WORK or --last", "see prog work show --help"),
        (["work", "show", "a", "b", "c"], "unexpected argument 'c'", "put text with spaces between quotes"),
        (["work", "show", "--last", "b", "c"], "unexpected argument 'c'", "put text with spaces between quotes"),
        (["work", "need"], "the following arguments are required: --to", "see prog work need --help"),
        (["say", "x", "--wait", "soon"], "--wait: must be a duration such as 30s", "see prog say --help"),
        (["say", "x", "--state", "xyz"], "--state: invalid choice: 'xyz'", "see prog say --help"),
        (["say", "x", "bash", "more"], "unexpected argument 'more'", "put text with spaces between quotes"),
        (["say", ""], "TEXT: must not be empty", "see prog say --help"),
    ],
)
def test_an_error_names_argument_rule_and_next_step(
    program: Program, words: list[str], message: str, hint: str
) -> None:
    with pytest.raises(CommandLineError) as caught:
        program.parse(words)
    assert caught.value.message.startswith(message)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    "words",
    [["say", "--help"], ["say", "x", "--al", "-h"], ["help", "say"], ["--name", "x", "say", "-h"]],
)
def test_help_of_a_command_names_its_arguments_options_and_examples(program: Program, words: list[str]) -> None:
    with pytest.raises(HelpRequested) as caught:
        program.parse(words)
    text = str(caught.value)
    assert text.startswith("usage: prog say TEXT [SHELL] [options]\n\nSay something.\n")
    for part in ("--to PEER", "time, 50% of it", "--state {open,closed}", "--timeout TIME", "  prog say hello"):
        assert part in text


def test_help_of_a_group_and_of_the_program_lists_commands(program: Program) -> None:
    assert "need" in program.help_text("work")
    assert "works: need" in program.help_text("")
    with pytest.raises(CommandLineError, match="unknown command frob"):
        program.help_text("frob")


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
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    "text", ["", "s", "-1", "1w", "1 m", "nan", "inf", "1e3", "٣", "1.2.3", ".", "367d", "9" * 400]
)
def test_bad_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        seconds(text)


def test_a_time_is_a_duration_before_now_a_time_of_today_or_a_date() -> None:
    now = time.time() * 1000
    assert abs(since("2h") - (now - 7_200_000)) < 60_000
    assert abs(since("90") - (now - 90_000)) < 60_000
    assert since("2026-11-23T14:30Z") == 1_795_444_200_000
    assert since("2026-11-23T14:30+01:00") == 1_795_440_600_000
    assert since("2026-11-23") == int(datetime(2026, 11, 23).timestamp() * 1000)
    midnight = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0).timestamp() * 1000
    assert since("14:30") - midnight in (52_200_000, 48_600_000, 55_800_000)  # also on a day of another length
    assert since("0001-01-02") == 0


@pytest.mark.parametrize("text", ["", "soon", "-1", "25:00", "2026-13-01", "2026-11-23T", "14:30:61", "9" * 30, "367d"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration such as 2h, a time of today"):
        since(text)


def test_numbers_have_bounds() -> None:
    assert whole("0") == 0
    assert limit("1000") == 1000
    for convert, text in ((whole, "-1"), (whole, "1" * 19), (limit, "0"), (limit, "1001"), (lifetime, "0s")):
        with pytest.raises(ValueError, match="must be"):
            convert(text)


@given(st.lists(st.text(max_size=8) | st.sampled_from(["--to", "--wait", "-o", "--", "--all", "-"]), max_size=6))
def test_any_command_line_is_parsed_or_refused(program: Program, argv: list[str]) -> None:
    try:
        values: dict[str, Any] = program.parse(["say", *argv])[1]
    except (CommandLineError, HelpRequested):
        return
    assert values["text"] in argv
