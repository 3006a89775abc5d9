"""The project installed from a wheel, as users have it: an editable install makes every start of Python slower."""

import contextlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.harness.processes import ROOT

_LEFT_OUT: Final = (".*", "build", "dist", "tests", "bench", "*.egg-info", "__pycache__")


@contextlib.contextmanager
def wheel_install() -> Iterator[Path]:
    """The `bin` folder of a virtual environment with a freshly built wheel; the libraries are those of this environment."""
    with tempfile.TemporaryDirectory(prefix="aghbench-wheel-") as name:
        folder = Path(name)
        shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*_LEFT_OUT))
        _pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "-w", name, str(folder / "source"))
        venv.create(folder / "venv", symlinks=True, with_pip=False)
        scripts = folder / "venv" / "bin"
        _pip(
            sys.executable, "--python", str(scripts / "python"), "install", "--no-deps", *map(str, folder.glob("*.whl"))
        )
        libraries = next((folder / "venv").glob("lib/python*/site-packages")) / "libraries.pth"
        libraries.write_text(sysconfig.get_paths()["purelib"])  # a path alone: its own .pth files are not read
        yield scripts


def _pip(python: str, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "-qq", "--disable-pip-version-check", *arguments], check=True)
