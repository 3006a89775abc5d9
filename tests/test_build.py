"""The wheel and the source distribution: the same sources give the same bytes. The manual pages in them."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from aghbus.cli.app.registry import PROGRAM as AGHCTL
from aghbus.daemon.main import PROGRAM as AGHD
from tests.support.tools import require_tool

ROOT = Path(__file__).parent.parent
CONSOLE = ROOT / "daemon" / "console" / "page"


def built(checkout: Path, target: Path, umask: int, **environment: str) -> dict[str, str]:
    """The SHA-256 of each file that a build in `checkout` writes."""
    command = [sys.executable, str(checkout / "deploy" / "build_dist.py"), str(target)]
    subprocess.run(command, check=True, umask=umask, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in target.iterdir()}


def copied(target: Path, mode: int) -> Path:
    """The checkout in another folder with other modes and times, and with a leftover of another build."""
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, target, symlinks=True, ignore=ignored, copy_function=shutil.copy)
    for path in target.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else mode)
    (target / "build" / "lib" / "aghbus" / "cli").mkdir(parents=True)
    (target / "build" / "lib" / "aghbus" / "cli" / "leftover.py").write_text("")
    return target


def test_untracked_files_are_not_shipped(tmp_path: Path) -> None:
    checkout = copied(tmp_path / "checkout", 0o600)
    for command in (("init", "-q"), ("add", "."), ("rm", "-q", "--cached", "deploy/compose.yaml")):
        subprocess.run(["git", "-C", str(checkout), *command], check=True)
    (checkout / "docs" / "secret.pem").write_text("untracked")
    built(checkout, tmp_path / "dist", 0o022, SOURCE_DATE_EPOCH="1700000000")
    (source,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(source) as shipped:
        names = {name.partition("/")[2] for name in shipped.getnames()}
    assert "deploy/install.sh" in names
    assert not names & {"deploy/compose.yaml", "docs/secret.pem"}


def test_builds_are_reproducible_across_folders_and_environments(tmp_path: Path) -> None:
    moment = {"SOURCE_DATE_EPOCH": "1700000000"}
    first = built(ROOT, tmp_path / "first", 0o022, TZ="UTC", PYTHONHASHSEED="1", **moment)
    other = copied(tmp_path / "checkout", 0o600)
    second = built(other, tmp_path / "second", 0o077, TZ="Asia/Tokyo", PYTHONHASHSEED="2", **moment)
    assert len(first) == 2
    assert first == second
    (wheel,) = (tmp_path / "first").glob("*.whl")
    (source,) = (tmp_path / "first").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as installed, tarfile.open(source) as shipped:
        tops = [name for name in installed.namelist() if name.count("/") == 1 and name.endswith(".py")]
        assert tops == [
            "aghbus/__init__.py",
            "pytest_aghbus/__init__.py",
        ]  # without it pytest would rewrite the assertions of every `client`, `store`, …
        for name in ("SKILL.md", "examples/input.json", "examples/output.json"):
            assert f"aghbus/cli/skills/agent-protocol/{name}" in installed.namelist()
            assert any(path.endswith(f"/cli/skills/agent-protocol/{name}") for path in shipped.getnames())
        shown = {path.partition("/page/")[2] for path in installed.namelist() if "aghbus/daemon/console/page/" in path}
        served = [path for path in CONSOLE.rglob("*") if path.is_file() and not path.name.endswith(".d.ts")]
        assert shown == {path.relative_to(CONSOLE).as_posix() for path in served}
        assert "vendor/LICENSES" in shown
        pages = [path for path in installed.namelist() if "/share/man/man1/" in path]
        assert len(pages) == len(AGHCTL.below("")) + len(AGHD.below("")) + 2
        assert sum("/share/man/man1/" in path for path in shipped.getnames()) == len(pages)


def test_an_installation_has_the_manual_of_the_sources_that_were_built(tmp_path: Path) -> None:
    man, checkout, prefix = require_tool("man"), copied(tmp_path / "checkout", 0o644), tmp_path / "prefix"
    registry = checkout / "cli" / "app" / "registry.py"
    registry.write_text(registry.read_text().replace('"list the known peers"', '"list everybody"'))
    built(checkout, tmp_path / "dist", 0o022, SOURCE_DATE_EPOCH="1700000000")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--ignore-installed"]
    subprocess.run([*install, "--prefix", str(prefix), str(wheel)], check=True)
    env = {**os.environ, "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}", "MANWIDTH": "80", "LC_ALL": "C"}
    env.pop("MANPATH", None)  # man finds the folder by that of the programs
    for words, text in (
        (["aghctl"], "EXIT CODES"),
        (["aghctl", "peers"], "list everybody"),
        (["aghd-run"], "2023-11-14"),
    ):
        shown = subprocess.run([man, "-P", "cat", *words], env=env, capture_output=True, text=True, check=True)
        assert text in shown.stdout


def test_the_manual_pages_are_right_roff_and_name_every_option(tmp_path: Path) -> None:
    man, groff = require_tool("man"), require_tool("groff")
    subprocess.run([sys.executable, ROOT / "deploy" / "man_pages.py", tmp_path, "1700000000"], check=True)
    for page in sorted(tmp_path.iterdir()):
        checked = subprocess.run(
            [groff, "-man", "-ww", "-z", "-Tutf8", page], capture_output=True, text=True, check=True
        )
        assert checked.stderr == "", page.name
        assert page.read_text().isascii()
    for program in (AGHCTL, AGHD):
        for word in program.below(""):
            text = rendered(man, tmp_path / f"{program.name}-{word}.1")
            for name in (name for name in program.commands if name.split()[0] == word):
                command = program.load(name)
                assert f"{program.name} {name}" in text
                for argument in command.arguments:
                    assert all(flag in text for flag in argument.spellings if not argument.is_positional), (
                        name,
                        argument,
                    )
                assert all(example in text for example in command.examples), name


def rendered(man: str, page: Path) -> str:
    """What man shows of a page, on a very wide terminal."""
    env = {**os.environ, "MANWIDTH": "1000", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""}
    done = subprocess.run(
        [man, "--warnings", "-P", "cat", "-l", page], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == "", page.name
    return done.stdout.replace("\u2010", "-")
