"""docs/threat-model.md names the test that shows each claim: those tests exist, and are not switched off."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def defined(path: Path) -> dict[str, list[str]]:
    """Test functions, classes and their methods of a file: each with its decorators as text."""
    return {
        node.name: [ast.unparse(one) for one in node.decorator_list]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_each_named_test_exists_and_runs(file: str, name: str) -> None:
    decorators = defined(ROOT / file).get(name)
    assert decorators is not None, f"docs/threat-model.md names {file}::{name}"
    assert not [one for one in decorators if re.search(r"mark\.(skip|xfail)\b", one)]


def test_every_claim_has_a_test() -> None:
    claims = PAGE.partition("## Guarantees")[2].partition("## What v0 cannot give")[0]
    rows = [line for line in claims.splitlines() if line.startswith("| ") and not line.startswith("| claim |")]
    assert len(rows) > 30
    assert [row for row in rows if "`tests/" not in row] == []
