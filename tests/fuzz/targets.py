"""The fuzz targets by name. A target is `check(bytes)`, which raises AssertionError, or anything else, for a defect."""

import importlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

TARGETS: Final = ("parse", "verify", "partial_parse", "adapters", "chains", "mcp_rpc", "mcp_text")


class Target(NamedTuple):
    """One target: what it judges inputs with, and the inputs it starts from."""

    name: str
    check: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


def target(name: str) -> Target:
    """The target of that name."""
    module = importlib.import_module(f"tests.fuzz.fuzz_{name}")
    return Target(name, module.check, module.seeds)
