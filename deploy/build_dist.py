"""Build the wheel and the source distribution: `python deploy/build_dist.py FOLDER`.

The same sources give the same bytes, wherever and whenever they are built, with the same Python and setuptools. All times are
SOURCE_DATE_EPOCH, else that of the last commit; modes, owners and order are fixed. setuptools is that of the running Python, and
nothing is downloaded. The wheel is built from the source distribution. Of a checkout only what git tracks is shipped, and
the manual pages, which are made here (deploy/man_pages.py) by the libraries that this Python has.
"""

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
_LEFT_OUT: Final = (".*", "build", "dist", "*.egg-info", "__pycache__")
_EARLIEST: Final = 315_532_800  # seconds; 1980-01-01, before which a wheel (a zip file) has no times
_HOOK: Final = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def build(target: Path) -> list[Path]:
    """Writes both files into `target`, which is created, and returns their paths: source distribution, wheel."""
    target.mkdir(parents=True, exist_ok=True)
    epoch = _epoch()
    os.umask(0o022)  # setuptools gives new files the mode of the umask
    with tempfile.TemporaryDirectory(prefix="aghbus-dist-") as name:
        sources, unpacked = Path(name, "sources"), Path(name, "unpacked")
        shutil.copytree(ROOT, sources, symlinks=True, ignore=_left_out(_tracked()))
        _add_manual(sources, Path(name), epoch)
        sdist = _repack(_hook("build_sdist", sources, Path(name), epoch), target, epoch)
        with tarfile.open(sdist) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # older releases of Python 3.11 have none
            archive.extractall(unpacked)  # noqa: S202 - our own archive
        wheel = _hook("build_wheel", next(unpacked.iterdir()), target.resolve(), epoch)
    return [sdist, wheel]


def _add_manual(sources: Path, scratch: Path, epoch: int) -> None:
    """Writes the manual pages of the programs in `sources`; an unpacked source distribution has them."""
    pages = sources / "share" / "man" / "man1"
    if pages.exists():
        return
    pages.mkdir(parents=True)
    project = tomllib.loads((sources / "pyproject.toml").read_text("utf-8"))
    for package, folder in project["tool"]["setuptools"]["package-dir"].items():
        place = scratch / "packages" / package.replace(".", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(sources / folder)
    environment = {**os.environ, "PYTHONPATH": str(scratch / "packages"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(sources / "deploy" / "man_pages.py"), str(pages), str(epoch)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"the manual pages were not made: install the libraries of the programs (make).\n{done.stderr}")


def _tracked() -> set[Path] | None:
    """The files of the checkout that git tracks, and their folders; None in an unpacked source distribution."""
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"git does not list the files of {ROOT}: {getattr(error, 'stderr', None) or error}")
    files = [ROOT / name for name in listed.split("\0") if name]
    return {path for file in files for path in (file, *file.parents)}


def _left_out(tracked: set[Path] | None) -> Callable[[str, list[str]], set[str]]:
    """What a copy of the sources leaves out, for `copytree`."""
    matching = shutil.ignore_patterns(*_LEFT_OUT)

    def left_out(folder: str, names: list[str]) -> set[str]:
        untracked = [] if tracked is None else [name for name in names if Path(folder, name) not in tracked]
        return {*matching(folder, names), *untracked}

    return left_out


def _epoch() -> int:
    """Seconds since 1970 for all times in both files."""
    named = os.environ.get("SOURCE_DATE_EPOCH")
    if named is None:
        command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        try:
            named = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
        except (OSError, subprocess.CalledProcessError):  # no git, or an unpacked source distribution
            named = "0"
    return max(int(named), _EARLIEST)


def _hook(name: str, sources: Path, target: Path, epoch: int) -> Path:
    """Runs a hook of setuptools (PEP 517) in `sources`; the file that it wrote into `target`."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", _HOOK, name, str(target)]
    done = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr}")
    return target / done.stdout.splitlines()[-1]


def _repack(sdist: Path, target: Path, epoch: int) -> Path:
    """The same source distribution in `target`, without what setuptools takes from the clock, the user and the folder."""
    packed = target / sdist.name
    with (
        tarfile.open(sdist) as old,
        packed.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=raw) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, epoch
            plain.mode = 0o755 if member.isdir() or member.name.endswith(".sh") else 0o644
            new.addfile(plain, old.extractfile(member))
    return packed


if __name__ == "__main__":
    for path in build(Path(sys.argv[1])):
        sys.stdout.write(f"{path}\n")
