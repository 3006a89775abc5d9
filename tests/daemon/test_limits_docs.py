"""docs/limits.md has every bound, with the default that the code has."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from aghbus.daemon.config.settings import KEYS, Settings, value_of
from aghbus.daemon.state.lanes import PARTS
from aghbus.daemon.state.limited_peers import REASONS

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]
SETTINGS = {row[0].strip("`"): row[2] for row in ROWS if re.fullmatch(r"`[a-z_]+\.[a-z_]+`", row[0])}
GROUPS = ("limits.", "inbox.", "receive.", "quarantine.", "store.retention_size", "jetstream.max_in_flight")


def shown(value: Any) -> str:
    """As the page writes it: bytes of whole MiB and GiB with their unit, others with thousands separated."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if value and value >= size and value % size == 0 and value != 1 << 20:
            return f"{value // size} {unit}"
    return f"{int(value):,}" if value == int(value) else str(value)


def constants() -> list[tuple[str, str, str]]:
    """Module, name and shown default of each constant."""
    named = [(re.match(r"`([A-Z_]+)` \(`([\w/]+)\.py`\)", row[0]), row[2]) for row in ROWS]
    found = [(one[2], one[1], value) for one, value in named if one is not None and value[0].isdigit()]
    limits = PAGE.partition("## Structure of a message")[2]
    return found + [
        ("protocol/agh/limits", name, value)
        for name, value in re.findall(r"\| `(MAX_\w+)` \| [^|]+ \| ([^|]+) \|", limits)
    ]


@pytest.mark.parametrize("name", [key.name for key in KEYS if key.name.startswith(GROUPS)])
def test_every_setting_that_bounds_peers_is_listed_with_its_default(name: str) -> None:
    assert re.match(rf"{re.escape(shown(value_of(Settings(name='ops'), name)))}\b", SETTINGS[name])


@pytest.mark.parametrize(("module", "name", "default"), constants())
def test_every_constant_has_the_value_of_the_code(module: str, name: str, default: str) -> None:
    value = getattr(importlib.import_module(f"aghbus.{module.replace('/', '.')}"), name)
    assert re.match(rf"{re.escape(shown(value))}\b", default)


def test_every_share_is_listed() -> None:
    listed = dict(re.findall(r"^\| (\w+) \| [^|]+ \| ([\d.]+) \|$", PAGE, re.MULTILINE))
    assert {lane: float(share) for lane, share in listed.items()} == PARTS


@pytest.mark.parametrize("reason", sorted({reason.partition(".")[0] for reason in REASONS}))
def test_every_reason_of_a_rejection_is_listed(reason: str) -> None:
    other = {"receipts": "receipts.suppressed", "answers": "whois.suppressed", "reactions": "inbox.reactions_left_out"}
    assert other.get(reason, f"`overload.{reason}`") in PAGE


def test_every_bound_of_the_protocol_is_listed() -> None:
    limits = importlib.import_module("aghbus.protocol.agh.limits")
    structure = {name for name in dir(limits) if name.startswith("MAX_")} & {
        "MAX_ENVELOPE_BYTES",
        "MAX_DEPTH",
        "MAX_CONTAINERS",
        "MAX_NUMBERS",
        "MAX_DOUBLES",
    }
    assert structure <= {name for _, name, _ in constants()}
