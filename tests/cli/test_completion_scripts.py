"""Completion scripts, run by the shells that are here."""

import shutil
import subprocess

import pytest

from aghbus.cli.app.completion import bash, fish, zsh
from aghbus.cli.app.registry import COMMANDS, GROUPS
from aghbus.cli.main import entry


def complete(*words: str) -> set[str]:
    """What bash offers for the last of `words`."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        f'{bash()}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _aghctl; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["aghctl", "who"], {"whois"}),
        (["aghctl", "work", "re"], {"reject"}),
        (["aghctl", "--name", "work", "inbox", "a"], {"ack"}),
        (["aghctl", "work", "open", "--t"], {"--to", "--text", "--thread", "--token-file", "--timeout"}),
        (["aghctl", "work", "list", "--state", "c"], {"completed", "canceled"}),
        (["aghctl", "status", "-o", "js"], {"json", "jsonl"}),
        (["aghctl", "completion", "f"], {"fish"}),
    ],
)
def test_bash_offers_what_fits(words: list[str], offered: set[str]) -> None:
    assert complete(*words) == offered


@pytest.mark.parametrize(("shell", "script"), [("bash", bash), ("zsh", zsh), ("fish", fish)])
def test_scripts_parse_and_name_every_command(shell: str, script: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(["completion", shell]) == 0
    text = capsys.readouterr().out
    for name in [*COMMANDS, *GROUPS]:
        assert name in text
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text.encode(), check=True, timeout=30)
