"""The wheel and the source distribution: the same sources give the same bytes."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


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
            "pytest_aghbus/__init__.py"
        ]  # without it pytest would rewrite the assertions of every `client`, `store`, …
        for name in ("SKILL.md", "examples/input.json", "examples/output.json"):
            assert f"aghbus/cli/skills/agent-protocol/{name}" in installed.namelist()
            assert any(path.endswith(f"/cli/skills/agent-protocol/{name}") for path in shipped.getnames())
