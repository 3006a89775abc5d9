"""Agents of each system on its own client library, and what serves them, each its own process. Others than ours need the dependency
group `bench`."""

import importlib.util
from typing import Final

_NEEDED: Final = {
    "a2a": "a2a-sdk",
    "faststream": "faststream",
    "sqlalchemy": "a2a-sdk[sqlite]",
    "uvicorn": "uvicorn",
}


def missing() -> str:
    """Why the other systems cannot be measured: what is not installed; empty when they can."""
    found = sorted({package for module, package in _NEEDED.items() if importlib.util.find_spec(module) is None})
    return (
        f"Other systems were not measured: {', '.join(found)} not installed (pip install --group bench)."
        if found
        else ""
    )
