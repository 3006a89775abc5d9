"""tests/README.md names the tests of each guarantee of docs/delivery.md: those tests exist, and are not switched off."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
DELIVERY = (ROOT / "docs" / "delivery.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def defined(path: Path) -> dict[str, list[str]]:
    """Test functions, and names that stand for test classes, of a file: each with its decorators as text."""
    found: dict[str, list[str]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = [ast.unparse(one) for one in node.decorator_list]
        elif isinstance(node, ast.Assign):
            found.update({target.id: [] for target in node.targets if isinstance(target, ast.Name)})
    return found


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 30


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_each_named_test_exists_and_runs(file: str, name: str) -> None:
    decorators = defined(ROOT / file).get(name)
    assert decorators is not None, f"tests/README.md names {file}::{name}"
    assert not [one for one in decorators if re.search(r"mark\.(skip|xfail)\b", one)]


def test_every_guarantee_has_a_test() -> None:
    table = DELIVERY.partition("## Guarantees")[2].partition("\n## ")[0]
    guarantees = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)[1:]
    assert len(guarantees) > 15
    assert re.findall(r"^\| ([^|]+) \| `tests/", PAGE, re.MULTILINE)[: len(guarantees)] == guarantees
