"""docs/protocol.md matches the code: its tables and its diagram are generated, and named files exist."""

import re
from pathlib import Path

import pytest

from aghbus.protocol.agh import limits
from aghbus.protocol.agh.errors import REASON_CODES
from aghbus.protocol.agh.lifecycle import OPEN_STATES, TRANSITIONS
from tests.support.draw_protocol_docs import PAGE, ROOT, drawn, lifecycle_table, limits_table, states_diagram


def test_tables_and_diagram_match_the_code() -> None:
    """When this fails: `python -m tests.support.draw_protocol_docs`, and read what changed."""
    page = PAGE.read_text("utf-8")
    assert drawn(page) == page


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for states"):
        drawn("# nothing here")


def test_the_tables_have_every_transition_and_every_limit() -> None:
    rows = lifecycle_table().splitlines()[2:]
    assert sum(row.count("|") - 2 for row in rows) == len(TRANSITIONS) + len(OPEN_STATES)  # trace submitted has none
    names = {name for name in vars(limits) if name.isupper()}
    assert names == set(re.findall(r"^\| `([A-Z_]+)`", limits_table(), re.MULTILINE))


def test_the_diagram_has_every_change_of_state() -> None:
    arrows = set(re.findall(r"(\w+) --> (\w+): ", states_diagram()))
    changes = {(before if after in OPEN_STATES else "open", after) for (before, _), after in TRANSITIONS.items()}
    assert arrows == {(before, after) for before, after in changes if before != after}


def test_every_extension_is_listed() -> None:
    listed = set(re.findall(r"^\| `(aghbus\.[a-z_]+)`", PAGE.read_text("utf-8"), re.MULTILINE))
    sources = [path for name in ("protocol/agh", "daemon/discovery") for path in (ROOT / name).rglob("*.py")]
    assert listed == {name for path in sources for name in re.findall(r'"(aghbus\.[a-z_]+)"', path.read_text("utf-8"))}


def test_every_named_reason_code_and_file_exists() -> None:
    page = PAGE.read_text("utf-8")
    assert set(re.findall(r"`([a-z_]+)`", page)) >= REASON_CODES
    for name in re.findall(r"`((?:protocol|tests)/[\w/.]+)`", page):
        assert (ROOT / Path(name)).exists(), name
