"""The libraries of Synadia's protocol, which only the bridge's process loads."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from aghbus.client.errors import UsageError

PACKAGES = ("synadia-ai-agents", "synadia-ai-agent-service")
HINT = 'pip install "aghbus[synadia]"'


def versions() -> dict[str, str | None]:
    """The version of each library; None for one that is not installed."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def check() -> None:
    """Raises UsageError when a library is missing."""
    missing = [package for package, found in versions().items() if found is None]
    if missing or find_spec("synadia_ai") is None:
        raise UsageError(f"not installed: {' and '.join(missing) or 'synadia_ai'}", HINT)
