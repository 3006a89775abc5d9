"""Where modules of the tests may take their helpers from."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
MODULES: Final = sorted(path for path in TESTS.rglob("*.py") if "typecheck" not in path.parts)


def imported(path: Path) -> Iterator[str]:
    """Each module that `path` imports, and `module.name` for each name it imports from one."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def misplaced(path: Path) -> list[str]:
    """What `path` imports of the tests besides tests/support; the fuzzer is a program of its own, in one folder."""
    allowed = ("tests.support.", "tests.fuzz.") if path.parent.name == "fuzz" else ("tests.support.",)
    ours = [name for name in imported(path) if name.split(".")[0] in ("tests", "conftest")]
    return [name for name in ours if not name.startswith(allowed) or ".test_" in name]


def test_helpers_come_from_support_and_never_from_another_test_module() -> None:
    assert {path.name: found for path in MODULES if (found := misplaced(path))} == {}
