"""Every path that aghctl and the client ask for is in the table of operations."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from aghbus.protocol.api.operations import OPERATIONS

ROOT = Path(__file__).parents[2]


def paths_in(source: Path) -> Iterator[str]:
    """The paths of the API in a module, with `{}` for each inserted value."""
    tree = ast.parse(source.read_text())
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            parts = [node.value]
        else:
            continue
        text = "".join(parts)
        if re.match(r"/(v1/|healthz|readyz)", text):
            yield text.partition("?")[0]


def fits(path: str, route: str) -> bool:
    """Whether the path can be one of the route: an inserted value stands for a parameter or a word."""
    segments, words = path.split("/"), route.split("/")
    same = (
        segment == word or segment == "{}" or word.startswith("{")
        for segment, word in zip(segments, words, strict=False)
    )
    return len(segments) == len(words) and all(same)


def test_every_path_that_aghctl_asks_for_is_a_route() -> None:
    asked = {
        path
        for folder in ("cli", "client", "testing")
        for source in (ROOT / folder).rglob("*.py")
        for path in paths_in(source)
    }
    assert len(asked) > 20
    assert {path for path in asked if not any(fits(path, operation.path) for operation in OPERATIONS)} == set()
