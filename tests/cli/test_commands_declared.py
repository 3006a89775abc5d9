"""Every command: declared, documented, with examples that parse, with request bodies of the API's types."""

import json
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aghbus.cli.app.arguments import GLOBAL_OPTIONS
from aghbus.cli.app.errors import EXIT_CODES
from aghbus.cli.app.registry import COMMANDS, GROUPS, HABITS, PROGRAM
from aghbus.cli.commands import capability, say
from aghbus.cli.main import entry
from aghbus.client.errors import UsageError
from aghbus.daemon.main import PROGRAM as DAEMON
from aghbus.protocol.api.base import RequestModel
from aghbus.protocol.api.inbox import InboxAckRequest, InboxNackRequest, InboxNextRequest
from aghbus.protocol.api.messages import SendRequest
from aghbus.protocol.api.peers import WhoisRequest
from aghbus.protocol.api.works import WorkActionRequest, WorkOpenRequest

REPOSITORY = Path(__file__).parent.parent.parent


def values_of(line: str) -> tuple[str, dict[str, Any]]:
    """The command and the values of an `aghctl …` line; pipes and redirections are cut off."""
    words = shlex.split(re.split(r" (?:\||<|>) ", line)[0])
    assert words.pop(0) == "aghctl"
    command, values = PROGRAM.parse(words)
    return next(name for name in COMMANDS if PROGRAM.load(name) is command), values


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_parse_and_belong_to_their_command(name: str) -> None:
    command = PROGRAM.load(name)
    assert command.description
    assert len(command.examples) >= 1
    lines = [re.sub(r"^.*?(aghctl )", r"\1", line).removesuffix(")") for line in command.examples]
    assert name in {values_of(line)[0] for line in lines}


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS, ""])
def test_every_command_and_group_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: aghctl")
    assert entry(["help", *name.split()]) == 0
    assert capsys.readouterr().out == text
    if name in COMMANDS:
        for argument in PROGRAM.load(name).arguments:
            assert argument.flags[-1] in text or argument.metavar in text


def test_without_a_word_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry([]) == 0
    assert capsys.readouterr().out == PROGRAM.help_text("")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("list", "work list, inbox list"),
        ("ps", "work list"),
        ("logs", "traces"),
        ("config", "aghd config show"),
        ("cancel", "work cancel, chain cancel"),
        ("work list --role initator", "initiator"),
        ("work list --state done", "completed"),
        ("mcp install cursr", "cursor"),
        ("-name ops status", "--name"),
    ],
)
def test_habits_of_other_programs_get_a_suggestion(line: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(line.split()) == 2
    assert f"hint: did you mean {hint}" in capsys.readouterr().err


def test_suggestions_for_habits_are_commands() -> None:
    for habit, meant in HABITS.items():
        assert habit not in COMMANDS, habit
        for words in meant.split(", "):
            if words.startswith("aghd "):
                DAEMON.parse(words.split()[1:])
            else:
                assert PROGRAM.longest(words.split()) in COMMANDS, habit


def test_modules_hold_no_command_that_is_not_registered() -> None:
    folder = REPOSITORY / "cli" / "commands"
    modules = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    assert modules == {module for module, _ in COMMANDS.values()}
    for module in modules:
        declared = set(__import__(f"aghbus.cli.commands.{module}", fromlist=["COMMANDS"]).COMMANDS)
        assert declared == {name for name, (home, _) in COMMANDS.items() if home == module}
    assert all(PROGRAM.below(group) for group in GROUPS)


def test_options_of_a_command_do_not_hide_global_ones() -> None:
    taken = {flag for option in GLOBAL_OPTIONS for flag in option.flags}
    for name in COMMANDS:
        arguments = PROGRAM.load(name).arguments
        assert not taken & {flag for argument in arguments for flag in argument.flags}, name
        names = [argument.dest for argument in (*arguments, *GLOBAL_OPTIONS)]
        assert len(set(names)) == len(names), name


def wire(body: dict[str, Any]) -> bytes:
    """The request body as the client encodes it."""
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("aghctl whois", WhoisRequest()),
        (
            "aghctl whois q --to p --wait 3s --first --catalog --channel c",
            WhoisRequest(query="q", to="p", wait=3, first=True, catalog=True, channel="c"),
        ),
        (
            "aghctl work open --to p --text t --direct --expires-in 5m --artifact https://x/report.xml",
            WorkOpenRequest(to="p", text="t", direct=True, expires_in=300, artifacts=[{"uri": "https://x/report.xml"}]),
        ),
        (
            "aghctl work open --to p --capability test.run --thread thread_abc --work-id work_1 --id m",
            WorkOpenRequest(to="p", capability_id="test.run", thread_id="thread_abc", work_id="work_1", id="m"),
        ),
        (
            'aghctl work complete w --result \'{"passed":true}\' --artifact \'{"uri":"x","n":1}\' --artifact y:1',
            WorkActionRequest(result={"passed": True}, artifacts=[{"uri": "x", "n": 1}, {"uri": "y:1"}]),
        ),
        ("aghctl work reject w", WorkActionRequest()),
        ("aghctl work reject w --reason busy --message later", WorkActionRequest(reason="busy", message="later")),
        ("aghctl work say w hello", WorkActionRequest(message="hello")),
        ("aghctl work say w --message hello", WorkActionRequest(message="hello")),
        ("aghctl inbox next", InboxNextRequest()),
        (
            "aghctl inbox next --wait 2 --visibility 1m --ack --work w --concurrent",
            InboxNextRequest(wait=2, visibility=60, ack=True, work_id="w", concurrent=True),
        ),
        ("aghctl inbox ack 3 --lease l", InboxAckRequest(lease="l")),
        ("aghctl inbox nack 3 --delay 1m --error e", InboxNackRequest(delay=60, error="e")),
    ],
)
def test_request_bodies_are_those_of_the_api(line: str, expected: RequestModel) -> None:
    name, values = values_of(line)
    module = import_module(f"aghbus.cli.commands.{COMMANDS[name][0]}")
    body = module.request_body(values)
    assert msgspec.json.decode(wire(body), type=type(expected)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("aghctl say hi --to a", [{"to": "a"}]),
        ("aghctl say hi --to a --to b --thread thread_abc", [{"to": "a"}, {"to": "b"}]),
        ("aghctl say hi --direct a", [{"to": "a", "direct": True}]),
        ("aghctl say hi --thread thread_abc", [{"thread_id": "thread_abc"}]),
        ("aghctl say hi --thread new", [{}]),
    ],
)
def test_request_bodies_of_say(line: str, expected: list[dict[str, Any]]) -> None:
    bodies = [msgspec.json.decode(wire(body), type=SendRequest) for body in say.request_bodies(values_of(line)[1])]
    assert len(bodies) == len(expected)
    for body, wanted in zip(bodies, expected, strict=True):
        assert (body.kind, body.body) == ("say", {"text": "hi"})
        assert all(getattr(body, name) == value for name, value in wanted.items())
        assert body.thread_id == ("thread_abc" if "thread_abc" in line else None)


def test_a_capability_is_sent_with_its_document() -> None:
    values = values_of("aghctl capability send test.run --direct p")[1]
    body = msgspec.json.decode(wire(capability.request_body(values, {"id": "test.run"})), type=SendRequest)
    assert (body.kind, body.body, body.to, body.direct) == ("capability", {"capability": {"id": "test.run"}}, "p", True)


@pytest.mark.parametrize(
    "line",
    [
        "aghctl say hi",
        "aghctl say hi --to a --direct b",
        "aghctl say hi --thread thread_abc --direct b",
        "aghctl say hi --to a --to b --id one",
    ],
)
def test_contradictions_of_say_are_refused(line: str) -> None:
    values = values_of(line)[1]
    with pytest.raises(UsageError):
        say.request_bodies(values)


@pytest.mark.parametrize(
    "args",
    [
        ["work", "open", "--to", "p"],
        ["work", "open", "--text", "t"],
        ["work", "open", "--to", "p", "--text", "t", "--capability", "c"],
        ["work", "open", "--to", "p", "--text", "t", "--direct", "--thread", "thread_abc"],
        ["work", "complete", "w", "--result", "[]"],
        ["work", "complete", "w", "--result", "{"],
        ["work", "need-input", "w"],
        ["work", "say", "w"],
        ["work", "say", "w", "a", "--message", "b"],
        ["work", "finish", "w"],
        ["work"],
        ["inbox", "ack", "abc"],
        ["inbox", "list", "--state", "lost"],
        ["statsu"],
        ["--frobnicate"],
        ["--name", "Not A Name", "status"],
        ["--api", "ftp://x", "status"],
        ["--api", "", "status"],
        ["--name", "", "status"],
        ["--socket", "", "status"],
        ["--timeout", "0", "status"],
        ["--timeout", "999999d", "status"],
        ["whois", "--wait", "999999d"],
        ["messages", "show", ""],
        ["trust", "why", ""],
        ["--api", "http://127.0.0.1:1", "--token-file", "/no/such", "status"],
    ],
)
def test_usage_errors_need_no_daemon(
    args: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("AGHD_API_SOCKET", raising=False)
    assert entry(args) == 2
    assert capsys.readouterr().err.startswith("aghctl: ")


@pytest.mark.parametrize(
    "url", ["http://8.8.8.8:80", "http://[::2]:80", "http://localhost.example:80", "http://128.0.0.1:80", "127.1:80"]
)
def test_the_token_is_sent_to_no_other_host(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # If the token file were read first, its absence would be the error.
    assert entry(["--api", url, "--token-file", str(tmp_path / "none"), "status"]) == 2
    assert "loopback" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1]:1", "localhost:1", "http://127.8.8.8:1/"])
def test_every_loopback_address_is_contacted(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text("secret")
    assert entry(["--api", url, "--token-file", str(tmp_path / "token"), "status"]) == 3


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_token_file_that_others_may_use_is_refused(
    mode: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(mode)
    assert entry(["--api", "http://127.0.0.1:1", "--token-file", str(tmp_path / "token"), "status"]) == 2
    assert f"chmod 600 {tmp_path}/token" in capsys.readouterr().err


def test_the_manual_lists_every_command_option_and_exit_code() -> None:
    manual = (REPOSITORY / "docs" / "cli.md").read_text()
    for name, (_, summary) in COMMANDS.items():
        assert f"| `{name}` | {summary} |" in manual, name
    for option in GLOBAL_OPTIONS:
        assert f"`{option.flags[-1]}`" in manual
    for code, meaning in EXIT_CODES:
        assert f"| {code} | {meaning} |" in manual
