"""`aghctl bridge humaninloop apply` writes no file that other programs read or run without being asked."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from aghbus.cli.app.errors import AnswerIsNo
from aghbus.cli.app.registry import PROGRAM
from aghbus.cli.context import Context
from tests.support.tools import require_npm, require_tool

TOOLS: dict[str, Callable[[], list[str]]] = {
    "git": lambda: [require_tool("git"), "status"],
    "make": lambda: [require_tool("make")],
    "npm": lambda: [*require_npm(), "test"],
    "pytest": lambda: [sys.executable, "-m", "pytest", "-q"],
    "direnv": lambda: [require_tool("direnv"), "exec", ".", "true"],
    "vim": lambda: [require_tool("vim"), "--not-a-term", "+q"],
}


class Trap(NamedTuple):
    """Files of a peer that make a tool create PWNED, beside `own` files of the user."""

    tool: str
    files: dict[str, str]
    own: dict[str, str] = {}  # noqa: RUF012 - never changed


CONFIG = '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = "touch PWNED; false"\n'
DOCTEST = ">>> import pathlib; pathlib.Path('PWNED').touch()\n"
IMPORT = "import pathlib\n\npathlib.Path('PWNED').touch()\n"
RUN_NODE = json.dumps({"scripts": {"test": '"$npm_node_execpath" -e 0'}})
COMMON = "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tworktreeConfig = true\n"
REPOSITORIES = [
    Trap("git", {"HEAD": "ref: refs/heads/main\n", "config": CONFIG, "objects/a": "", "refs/a": ""}),
    Trap(
        "git",
        {
            "HEAD": "ref: refs/heads/main\n",
            "commondir": "common\n",
            "config.worktree": CONFIG,
            "common/config": COMMON,
            "common/objects/a.md": "",
            "common/refs/a.md": "",
        },
    ),
]
TRAPS = [
    *REPOSITORIES,
    Trap("make", {"Makefile": "all:\n\ttouch PWNED\n"}),
    Trap("make", {"GNUmakefile": "all:\n\ttouch PWNED\n"}, {"Makefile": "all:\n"}),
    Trap("npm", {"package.json": json.dumps({"scripts": {"test": "touch PWNED"}})}),
    Trap(
        "npm",
        {".npmrc": "node-options=--require ./notes.txt\n", "notes.txt": "require('fs').writeFileSync('PWNED', '')\n"},
        {"package.json": RUN_NODE},
    ),
    Trap("pytest", {"conftest.py": IMPORT}),
    Trap("pytest", {"pytest.ini": "[pytest]\naddopts = --doctest-glob=*.md\n", "notes.md": DOCTEST}),
    Trap("pytest", {"docs/test_notes.txt": DOCTEST}),
    Trap("pytest", {"x.dist-info/entry_points.txt": "[pytest11]\nx = deploy\n"}, {"deploy.py": IMPORT}),
    Trap("direnv", {".envrc": "touch PWNED\n"}),
    Trap("vim", {".vimrc": "call writefile([], 'PWNED')\n"}),
]


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


def put(folder: Path, files: dict[str, str]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


def is_run(trap: Trap, folder: Path, home: Path) -> bool:
    """Whether the tool, called in `folder` by a user who lets direnv and vim load files of folders, runs the program."""
    direnv = f"[whitelist]\nprefix = [{json.dumps(str(folder))}]\n"
    put(home, {".vimrc": "set exrc\n", ".config/direnv/direnv.toml": direnv})
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"}
    command = TOOLS[trap.tool]()
    subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    return (folder / "PWNED").exists()


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: f"{trap.tool}-{next(iter(trap.files))}")
def test_no_tool_runs_a_program_of_a_peer(root: Path, file: Path, tmp_path: Path, trap: Trap) -> None:
    put(root, trap.own)
    artifacts = [(path, "create", content) for path, content in trap.files.items()]
    for part in (artifacts, *([artifact] for artifact in artifacts)):  # all at once, then one in each call
        write(file, *part)
        with suppress(AnswerIsNo):
            run("--file", str(file), "--root", str(root))
    assert not is_run(trap, root, tmp_path / "home")
    put(root, trap.files)
    assert is_run(trap, root, tmp_path / "home")


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("folder", ["", "docs/"])
@pytest.mark.parametrize("trap", REPOSITORIES, ids=["HEAD", "commondir"])
def test_no_option_lets_a_folder_become_a_git_repository(
    root: Path, file: Path, tmp_path: Path, trap: Trap, folder: str, order: int
) -> None:
    artifacts = [(folder + path, "create", content) for path, content in trap.files.items()][::order]
    options = ["--file", str(file), "--root", str(root), *(f"--allow={path}" for path, _, _ in artifacts)]
    write(file, *artifacts)
    for more in (["--dry-run"], []):
        with pytest.raises(AnswerIsNo, match="HEAD: with objects, refs or commondir") as caught:
            run(*options, *more)
        assert (caught.value.code, list(root.iterdir())) == ("path_git", [])
    refused = 0
    for artifact in artifacts:
        write(file, artifact)
        try:
            run(*options)
        except AnswerIsNo as error:
            assert error.code == "path_git"
            refused += 1
    assert refused
    put(root / folder, {})
    assert not is_run(trap, root / folder, tmp_path / "home")


def test_nothing_is_written_into_a_git_repository_that_is_there(root: Path, file: Path) -> None:
    subprocess.run([require_tool("git"), "init", "-q", "--bare", str(root / "x")], check=True)
    write(file, ("x/hooks/notes.md", "create", ""))
    with pytest.raises(AnswerIsNo, match="x/HEAD: "):
        run("--file", str(file), "--root", str(root))


@pytest.mark.parametrize("path", [".envrc", "a/.github/x.yml", ".vscode/tasks.json", "a/\u200b.bashrc"])
def test_hidden_names_need_an_option(root: Path, file: Path, path: str) -> None:
    write(file, ("b.md", "create", "new\n"), (path, "create", "new\n"))
    with pytest.raises(AnswerIsNo) as caught:
        run("--file", str(file), "--root", str(root))
    assert (caught.value.code, list(root.iterdir())) == ("path_hidden", [])
    assert "--allow" in caught.value.hint
    assert run("--file", str(file), "--root", str(root), "--allow", path) == 0
    assert (root / path).read_text() == "new\n"


@pytest.mark.parametrize(
    "path",
    [
        "Makefile",
        "a/x.json",
        "b.YAML",
        "CLAUDE.md",
        "a/agents.Override.MD",
        "cmakelists.TXT",
        "TEST\u200b_x.txt",
        "a.md.",
    ],
)
def test_names_that_tools_load_need_an_option(root: Path, file: Path, path: str) -> None:
    write(file, ("agenda.md", "create", ""), ("a/latest.TXT", "create", ""), (path, "create", "new\n"))
    for others in ([], ["--allow", "a/x", "--allow", "b", "--allow", ""]):
        with pytest.raises(AnswerIsNo, match=path) as caught:
            run("--file", str(file), "--root", str(root), *others)
        assert (caught.value.code, list(root.iterdir())) == ("path_kind", [])
    assert run("--file", str(file), "--root", str(root), "--allow", path.split("/")[0] + "/") == 0
    assert (root / path).read_text() == "new\n"


@pytest.mark.parametrize("path", [".git/config", ".GIT/config"])
def test_a_git_folder_is_never_written_and_git_runs_no_program_of_a_peer(root: Path, file: Path, path: str) -> None:
    git = require_tool("git")
    subprocess.run([git, "init", "-q", str(root)], check=True)
    content = f"[core]\n\tfsmonitor = touch {root}/pwned; false\n"
    write(file, (path, "update" if path == ".git/config" else "create", content))
    with pytest.raises(AnswerIsNo) as caught:
        run("--file", str(file), "--root", str(root), "--allow", path)
    assert caught.value.code == "path_git"
    subprocess.run([git, "-C", str(root), "status", "-s"], check=True, capture_output=True)
    assert not (root / "pwned").exists()
