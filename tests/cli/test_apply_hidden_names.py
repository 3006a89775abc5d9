"""`aghctl bridge humaninloop apply` writes no file that other programs read or run without being asked."""

import json
import subprocess
from pathlib import Path

import pytest

from aghbus.cli.app.errors import AnswerIsNo
from aghbus.cli.app.registry import PROGRAM
from aghbus.cli.context import Context
from tests.support.tools import require_tool


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "output.json"


def write(file: Path, *artifacts: tuple[str, str, str]) -> None:
    """An output envelope with files of path, operation and content."""
    rows = [dict(zip(("path", "operation", "content"), artifact, strict=True)) for artifact in artifacts]
    message = {"success": True, "summary": "s", "artifacts": rows, "recommendation": "proceed"}
    file.write_text(json.dumps(message))


def run(*argv: str) -> int:
    command, values = PROGRAM.parse(["bridge", "humaninloop", "apply", *argv])
    return command.run(Context(values), values)


@pytest.mark.parametrize("path", [".envrc", "a/.github/x.yml", ".vscode/tasks.json", "a/\u200b.bashrc"])
def test_hidden_names_need_an_option(root: Path, file: Path, path: str) -> None:
    write(file, ("b.md", "create", "new\n"), (path, "create", "new\n"))
    with pytest.raises(AnswerIsNo) as caught:
        run("--file", str(file), "--root", str(root))
    assert (caught.value.code, list(root.iterdir())) == ("path_hidden", [])
    assert "--allow-hidden" in caught.value.hint
    assert run("--file", str(file), "--root", str(root), "--allow-hidden") == 0
    assert (root / path).read_text() == "new\n"


@pytest.mark.parametrize("path", [".git/config", ".GIT/config"])
def test_a_git_folder_is_never_written_and_git_runs_no_program_of_a_peer(root: Path, file: Path, path: str) -> None:
    git = require_tool("git")
    subprocess.run([git, "init", "-q", str(root)], check=True)
    content = f"[core]\n\tfsmonitor = touch {root}/pwned; false\n"
    write(file, (path, "update" if path == ".git/config" else "create", content))
    with pytest.raises(AnswerIsNo) as caught:
        run("--file", str(file), "--root", str(root), "--allow-hidden")
    assert caught.value.code == "path_git"
    subprocess.run([git, "-C", str(root), "status", "-s"], check=True, capture_output=True)
    assert not (root / "pwned").exists()
