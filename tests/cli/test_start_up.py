"""Start-up time is bounded by what is imported: a command loads only what it uses."""

import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from aghbus.host.version import VERSION

HEAVY = {
    "argparse",
    "argcomplete",
    "asyncio",
    "cryptography",
    "dataclasses",
    "difflib",
    "email",
    "hashlib",
    "http",
    "importlib.metadata",
    "inspect",
    "logging",
    "lzma",
    "msgspec",
    "nats",
    "shutil",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "typing",
    "urllib.request",
    "aghbus.daemon.config",
    "aghbus.protocol.base.text",
    "aghbus.protocol.api",
}
"""Modules that no short command needs; each costs between one and thirty milliseconds."""


def imported(package: str, *args: str) -> set[str]:
    """Modules that a program imports for `args`, except those that the interpreter loads anyway in this environment."""

    def loaded(*command: str) -> set[str]:
        full = [sys.executable, "-X", "importtime", *command]
        errors = subprocess.run(full, capture_output=True, text=True, timeout=60, check=False).stderr
        return {line.rpartition("|")[2].strip() for line in errors.splitlines() if line.startswith("import time:")}

    return loaded("-m", package, *args) - loaded("-c", "pass")


def test_every_guarded_module_exists() -> None:
    assert all(find_spec(name) for name in HEAVY)


def test_whois_loads_nothing_heavy(tmp_path: Path) -> None:
    modules = imported("aghbus.cli", "whois", "test.run", "--first", "--socket", str(tmp_path / "nobody.sock"))
    assert "aghbus.cli.commands.whois" in modules
    assert not HEAVY & modules


def test_one_command_loads_no_other() -> None:
    modules = imported("aghbus.cli", "id", "route", "ops")
    assert {name for name in modules if name.startswith("aghbus.cli.commands.")} == {"aghbus.cli.commands.identifiers"}
    assert "socket" not in modules


@pytest.mark.parametrize("package", ["aghbus.cli", "aghbus.daemon"])
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["frobnicate"]])
def test_version_help_and_usage_errors_load_nothing_heavy(package: str, words: list[str]) -> None:
    modules = imported(package, *words)
    assert f"{package}.main" in modules
    allowed = {"--version": "typing", "--help": "argparse", "frobnicate": "difflib"}[words[0]]
    assert not (HEAVY - {allowed}) & modules


def test_one_command_of_the_daemon_loads_no_other() -> None:
    modules = imported("aghbus.daemon", "config", "show", "--help")
    assert "aghbus.daemon.commands.config" in modules
    assert not {"aghbus.daemon.commands.run", "aghbus.daemon.commands.check_store", "nats", "asyncio"} & modules


def test_the_version_is_that_of_the_installed_distribution() -> None:
    assert metadata.version("aghbus") == VERSION
