"""Values that the TAB key completes: instances, peers, capabilities and works, in every shell."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemons import Daemon, Home, wait_for
from tests.support.terminals import InteractiveShell, shell_env
from tests.support.tools import require_tool

WORK = "work_to_complete"
CATALOG = """
[[capabilities]]
id = "own.record"
summary = "A record of our catalog"
outcome = "A report"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home with `ops`, which knows `worker` and has a work, and an instance `asleep` that does not run."""
    home = Home(tmp_path_factory.mktemp("values"))
    (home.root / "state" / "aghbus" / "instances" / "asleep").mkdir(parents=True)
    (home.root / "own.toml").write_text(CATALOG)
    catalog = ("--catalog", str(home.root / "own.toml"))
    with Daemon(home, "worker", "--capability", "test.run") as worker, Daemon(home, "ops", *catalog) as ops:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 20, "the two to know each other")
        home.ctl_json("--name", "ops", "work", "open", "--to", "worker", "--text", "t", "--work-id", WORK)
        yield home


def environment(home: Home) -> dict[str, str]:
    return {**shell_env(home.root), **{name: value for name, value in home.env.items() if name.startswith("XDG_")}}


def offers(home: Home, line: str) -> set[str]:
    """The completions of the last word of a command line, by argcomplete's protocol."""
    answer = home.root / "answer"
    env = {
        **environment(home),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "",
    }
    command = [str(Path(sys.executable).parent / line.split()[0])]
    subprocess.run(command, env=env, cwd=home.root, capture_output=True, check=True, timeout=60)
    return set(answer.read_text().split("\n")) - {""}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("aghctl --name ", {"asleep", "ops", "worker"}),
        ("aghctl status --name o", {"ops"}),
        ("aghd run --name ", {"asleep", "ops", "worker"}),
        ("aghctl --name ops work open --to ", {"worker"}),
        ("aghctl --name worker say hello --to ", {"ops"}),
        ("aghctl say hello --name worker --to ", {"ops"}),
        ("aghctl --name ops wait --capability ", {"test.run", "own.record"}),
        ("aghctl --name ops whois te", {"test.run"}),
        ("aghctl --name ops capability show ", {"own.record"}),
        ("aghctl --name ops work watch ", {WORK}),
        ("aghctl --name ops work complete work_", {WORK}),
        ("aghctl --name asleep work watch ", set()),
        ("aghctl work watch ", set()),  # several daemons run, and none is named
    ],
)
def test_values_are_completed(home: Home, line: str, offered: set[str]) -> None:
    if offered:  # the program waits for a daemon for a second, and completes nothing then
        wait_for(lambda: offers(home, line) == offered, 30, f"{offered}")
    else:
        assert offers(home, line) == offered


LINES = [
    ("aghctl --name asl", "asleep"),
    ("aghctl --name ops work open --to wor", "worker"),
    ("aghd run --name as", "asleep"),
]


@pytest.mark.parametrize(
    ("shell", "options"), [("bash", ["--norc", "--noprofile", "-i"]), ("zsh", ["-f", "-i"])], ids=["bash", "zsh"]
)
def test_an_interactive_shell_completes_values(home: Home, shell: str, options: list[str]) -> None:
    with InteractiveShell([require_tool(shell), *options], environment(home)) as session:
        session.type(f"source <(aghctl completion {shell}); echo LOAD''ED\n", until="LOADED")
        for line, word in LINES:
            session.type(f"\x15{line}\t", until=f"{word} ")


def test_fish_completes_values(home: Home) -> None:
    asked = "; ".join(f"complete --do-complete '{line}'; echo ---" for line, _ in LINES)
    command = [require_tool("fish"), "--no-config", "-c", f"aghctl completion fish | source; {asked}"]
    env = {**os.environ, **environment(home)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert [answer.split("\t")[0].strip() for answer in done.stdout.split("---\n")] == [
        *(word for _, word in LINES),
        "",
    ]


def test_generated_ids_of_works_are_offered_by_their_ends_until_a_beginning_is_typed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with Daemon(home, "alone") as alone:
        works = {alone.post("/v1/works", to="nobody", text="t")["work_id"] for _ in range(2)}
        assert offers(home, "aghctl work show ") == {work[-8:] for work in works}
        assert offers(home, "aghctl work show work_0") == works
        end = works.pop()[-8:]
        with InteractiveShell([require_tool("bash"), "--norc", "--noprofile", "-i"], environment(home)) as session:
            session.type("source <(aghctl completion bash); echo LOAD''ED\n", until="LOADED")
            session.type(f"aghctl work show {end[:5]}\t", until=f"{end} ")
