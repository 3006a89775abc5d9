"""Where tests take their helpers from, how many modules a folder holds, and how long functions and constructors are."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
ROOT: Final = TESTS.parent
FOLDERS: Final = ("host", "protocol", "store", "daemon", "client", "testing", "gateways", "cli")
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


def functions(module: ast.AST) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Each function and method by its name; `__init__` by the name of its class."""
    owner = {id(each): cls.name for cls in ast.walk(module) if isinstance(cls, ast.ClassDef) for each in cls.body}
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner[id(node)] if node.name == "__init__" else node.name, node


def too_long(module: ast.AST) -> set[str]:
    """The functions with more than 70 lines, and the constructors with more than ten parameters."""
    found = set()
    for name, node in functions(module):
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs][1:]
        length = (node.end_lineno or 0) - node.lineno + 1
        if length > 70 or (node.name == "__init__" and len(parameters) > 10):
            found.add(name)
    return found


def test_helpers_come_from_support_and_never_from_another_test_module() -> None:
    assert {path.name: found for path in MODULES if (found := misplaced(path))} == {}


def test_packages_hold_at_most_20_modules() -> None:
    """At most 20 modules in a package (cli/commands has one for each command), at most 50 files at the top."""
    folders = [path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.is_dir()]
    tops = [ROOT / name for name in FOLDERS]
    counted = {path.relative_to(ROOT).as_posix(): len([*path.glob("[!_]*.py")]) for path in (*tops, *folders)}
    assert {name: count for name, count in counted.items() if count > 20 and name != "cli/commands"} == {}
    assert sum(len([*top.glob("*.py")]) for top in tops) <= 50


def test_every_package_of_the_tree_is_in_the_wheel() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"])
    modules = (path.relative_to(ROOT) for name in FOLDERS for path in (ROOT / name).rglob("*.py"))
    packages = {f"aghbus.{'.'.join(path.parent.parts)}" for path in modules}
    elsewhere = {"aghbus.testing.pytest_aghbus": "pytest_aghbus", "aghbus.host.package": "aghbus"}
    assert listed == packages - elsewhere.keys() | set(elsewhere.values())


def test_function_length_and_constructor_parameters_are_limited() -> None:
    modules = [ast.parse(path.read_text("utf-8")) for name in FOLDERS for path in (ROOT / name).rglob("*.py")]
    assert {name for module in modules for name in too_long(module)} == set()


def test_the_check_finds_long_functions_and_constructors() -> None:
    parameters = ", ".join(f"p{number}" for number in range(10))
    for last, found in (("", set()), (", *, last", {"Part"})):
        assert too_long(ast.parse(f"class Part:\n    def __init__(self, {parameters}{last}): pass")) == found
    for lines, found in ((69, set()), (70, {"work"})):
        assert too_long(ast.parse("async def work():\n" + "    pass\n" * lines)) == found
