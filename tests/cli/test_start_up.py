"""Starting fast is a feature: a short command loads only what it uses."""

import subprocess
import sys
from pathlib import Path

HEAVY = {
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
    "shutil",
    "ssl",
    "subprocess",
    "tempfile",
    "typing",
    "urllib.request",
    "aghbus.protocol.text",
    "aghbus.protocol.api.base",
}
"""Modules that no short command needs; each costs between one and thirty milliseconds."""


def imported(*args: str) -> set[str]:
    """Modules that a run of aghctl imports; those that the interpreter loads anyway in this environment are left out."""

    def loaded(*command: str) -> set[str]:
        full = [sys.executable, "-X", "importtime", *command]
        errors = subprocess.run(full, capture_output=True, text=True, timeout=60, check=False).stderr
        return {line.rpartition("|")[2].strip() for line in errors.splitlines() if line.startswith("import time:")}

    return loaded("-m", "aghbus.cli", *args) - loaded("-c", "pass")


def test_whois_loads_nothing_heavy(tmp_path: Path) -> None:
    modules = imported("whois", "test.run", "--first", "--socket", str(tmp_path / "nobody.sock"))
    assert "aghbus.cli.commands.whois" in modules
    assert not HEAVY & modules


def test_one_command_loads_no_other() -> None:
    modules = imported("id", "route", "ops")
    assert {name for name in modules if name.startswith("aghbus.cli.commands.")} == {"aghbus.cli.commands.identifiers"}
    assert "socket" not in modules
