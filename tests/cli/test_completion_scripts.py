"""Completion: the words that the programs offer, and the scripts in bash, zsh and fish."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aghbus.cli.app.registry import PROGRAM as CONTROL
from aghbus.cli.main import entry
from aghbus.daemon.main import PROGRAM as DAEMON
from tests.support.terminals import InteractiveShell, shell_env
from tests.support.tools import require_tool

CLEAR_LINE = "\x15"
LINES = [
    ("aghctl who", "whois"),
    ("aghctl work rej", "reject"),
    ("aghctl --name work inbox a", "ack"),
    ("aghctl status -o hu", "human"),
    ("aghctl work open --te", "--text"),
    ("aghctl bridge sacp log --l", "--limit"),
    ("aghctl completion f", "fish"),
    ("aghd config sh", "show"),
    ("aghd ru", "run"),
    ("aghd run --worksp", "--workspace"),
]
"""The text before the TAB key, and the completed word."""
ERRORS = ("not found", "rror", "no such", "bad ", "_aghbus", "_python")


def offers(tmp_path: Path, line: str) -> set[str]:
    """The completions of the last word of a command line, by argcomplete's protocol."""
    name, answer, folder = line.split()[0], tmp_path / "answer", tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    env = {
        **shell_env(tmp_path),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "",
    }
    command = [str(Path(sys.executable).parent / name)]
    subprocess.run(command, env=env, cwd=folder, capture_output=True, check=True, timeout=60)
    return set(answer.read_text().split("\n")) - {""}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("aghctl who", {"whois"}),
        ("aghctl work re", {"reject", "retry"}),
        ("aghctl --name work inbox a", {"ack"}),
        ("aghctl inbox -o json ", {"list", "next", "ack", "nack", "requeue", "purge", "follow"}),
        ("aghctl work open --t", {"--to", "--to-capability", "--text", "--thread", "--token-file", "--timeout"}),
        ("aghctl --t", {"--token-file", "--timeout"}),
        ("aghctl work list --state c", {"completed", "canceled"}),
        ("aghctl status -o js", {"json", "jsonl"}),
        ("aghctl completion f", {"fish"}),
        ("aghctl bridge s", {"sentient", "sacp"}),
        ("aghctl bridge sacp ", {"log", "prompt"}),
        ("aghctl bridge sacp log --lim", {"--limit"}),
        ("aghd ch", {"check-store"}),
        ("aghd config ", {"show", "check"}),
        ("aghd check-store --acc", {"--accept-loss"}),
        ("aghd version -o ", {"human", "json"}),
    ],
)
def test_a_program_offers_the_matching_words(tmp_path: Path, line: str, offered: set[str]) -> None:
    assert offers(tmp_path, line) == offered


def test_files_are_offered_for_a_file_argument(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "captured.jsonl").touch()
    assert offers(tmp_path, "aghctl envelope check cap") == {"captured.jsonl"}


@pytest.mark.parametrize(
    ("shell", "options"), [("bash", ["--norc", "--noprofile", "-i"]), ("zsh", ["-f", "-i"])], ids=["bash", "zsh"]
)
def test_an_interactive_shell_completes_words(tmp_path: Path, shell: str, options: list[str]) -> None:
    with InteractiveShell([require_tool(shell), *options], shell_env(tmp_path)) as session:
        session.type(f"source <(aghctl completion {shell}); echo LOAD''ED\n", until="LOADED")
        for line, word in LINES:
            shown = session.type(f"{CLEAR_LINE}{line}\t", until=f"{word} ")
            assert not any(sign in shown for sign in ERRORS), shown


@pytest.mark.parametrize("line", ["cd / && aghctl who", "echo x | aghctl who", "A=1 aghctl who"])
def test_zsh_completes_a_command_inside_a_longer_line(tmp_path: Path, line: str) -> None:
    with InteractiveShell([require_tool("zsh"), "-f", "-i"], shell_env(tmp_path)) as session:
        session.type("source <(aghctl completion zsh); echo LOAD''ED\n", until="LOADED")
        session.type(f"{line}\t", until="whois ")


def test_zsh_loads_the_script_from_a_folder_of_fpath(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(["completion", "zsh"]) == 0
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "_aghctl").write_text(capsys.readouterr().out)
    with InteractiveShell([require_tool("zsh"), "-f", "-i"], shell_env(tmp_path)) as session:
        session.type("fpath=(~/functions $fpath); autoload -Uz compinit; compinit -u; echo LOAD''ED\n", until="LOADED")
        for line, word in LINES:
            session.type(f"{CLEAR_LINE}{line}\t", until=f"{word} ")


def test_fish_completes_words(tmp_path: Path) -> None:
    asked = "; ".join(f"complete --do-complete '{line}'; echo ---" for line, _ in LINES)
    command = [require_tool("fish"), "--no-config", "-c", f"aghctl completion fish | source; {asked}"]
    done = subprocess.run(command, env=shell_env(tmp_path), capture_output=True, text=True, check=True, timeout=60)
    answers = [answer.split("\t")[0].strip() for answer in done.stdout.split("---\n")]
    assert answers == [*(word for _, word in LINES), ""]
    assert done.stderr == ""


@pytest.mark.parametrize("program", ["aghctl", "aghd"])
def test_fish_offers_every_first_word(tmp_path: Path, program: str) -> None:
    script = f"aghctl completion fish | source; complete --do-complete '{program} '"
    command = [require_tool("fish"), "--no-config", "-c", script]
    done = subprocess.run(command, env=shell_env(tmp_path), capture_output=True, text=True, check=True, timeout=60)
    words = {line.split("\t")[0] for line in done.stdout.splitlines()}
    assert words == set((CONTROL if program == "aghctl" else DAEMON).below(""))
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_printed_whole_and_parse(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "aghctl" in text and "aghd" in text
    subprocess.run([require_tool(shell), "-n"], input=text.encode(), check=True, timeout=30, env=dict(os.environ))
