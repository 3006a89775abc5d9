"""Where tests take their helpers from, and how many modules a folder holds."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
ROOT: Final = TESTS.parent
FOLDERS: Final = ("host", "protocol", "store", "daemon", "client", "cli")
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


def test_packages_hold_at_most_20_modules() -> None:
    """At most 20 modules in a package (cli/commands has one for each command), at most 40 files at the top."""
    folders = [path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.is_dir()]
    tops = [ROOT / name for name in FOLDERS]
    counted = {path.relative_to(ROOT).as_posix(): len([*path.glob("[!_]*.py")]) for path in (*tops, *folders)}
    assert {name: count for name, count in counted.items() if count > 20 and name != "cli/commands"} == {}
    assert sum(len([*top.glob("*.py")]) for top in tops) <= 40


def test_every_package_of_the_tree_is_in_the_wheel() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"])
    modules = (path.relative_to(ROOT) for name in FOLDERS for path in (ROOT / name).rglob("*.py"))
    assert listed == {f"aghbus.{'.'.join(path.parent.parts)}" for path in modules}
