"""docs/protocol.md says what the code does: its tables are drawn from it, and what it names exists."""

import re
from pathlib import Path

import pytest

from aghbus.protocol import limits
from aghbus.protocol.errors import REASON_CODES
from aghbus.protocol.lifecycle import OPEN_STATES, TRANSITIONS
from tests.support.draw_protocol_docs import PAGE, ROOT, drawn, lifecycle_table, limits_table


def test_the_tables_are_those_of_the_code() -> None:
    """When this fails: `python -m tests.support.draw_protocol_docs`, and read what changed."""
    page = PAGE.read_text("utf-8")
    assert drawn(page) == page


def test_a_page_without_the_places_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for lifecycle"):
        drawn("# nothing here")


def test_every_transition_and_every_limit_is_drawn() -> None:
    rows = lifecycle_table().splitlines()[2:]
    assert sum(row.count("|") - 2 for row in rows) == len(TRANSITIONS) + len(OPEN_STATES)  # trace submitted has none
    names = {name for name in vars(limits) if name.isupper()}
    assert names == set(re.findall(r"^\| `([A-Z_]+)`", limits_table(), re.MULTILINE))


def test_every_reason_code_and_every_file_that_is_named_exists() -> None:
    page = PAGE.read_text("utf-8")
    assert set(re.findall(r"`([a-z_]+)`", page)) >= REASON_CODES
    for name in re.findall(r"`((?:protocol|tests)/[\w/.]+)`", page):
        assert (ROOT / Path(name)).exists(), name
