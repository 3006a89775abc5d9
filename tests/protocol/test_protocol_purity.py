"""The protocol package stays pure and documented, and its errors carry the reason codes of the wire.

Which modules it may import is a contract of import-linter (pyproject.toml).
"""

import ast
from pathlib import Path
from typing import Final

import pytest

from aghbus.protocol.agh import errors

PACKAGE: Final = Path(__file__).parent.parent.parent / "protocol"
# Builtins with side effects.
FORBIDDEN_CALLS: Final = frozenset({"open", "print", "input", "exec", "eval", "__import__", "breakpoint"})


def modules() -> list[tuple[str, ast.Module]]:
    found = [
        (path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text("utf-8")))
        for path in sorted(PACKAGE.rglob("*.py"))
    ]
    assert len(found) > 10
    return found


MODULES: Final = [pytest.param(tree, id=name) for name, tree in modules()]


@pytest.mark.parametrize("tree", MODULES)
def test_no_impure_builtin_is_called(tree: ast.Module) -> None:
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & FORBIDDEN_CALLS


@pytest.mark.parametrize("tree", MODULES)
def test_no_module_keeps_state_in_a_global(tree: ast.Module) -> None:
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global | ast.Nonlocal)]


def _undocumented(body: list[ast.stmt], prefix: str = "") -> list[str]:
    missing = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            overload = any(ast.unparse(each) == "overload" for each in node.decorator_list)
            if ast.get_docstring(node) is None and not overload:
                missing.append(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                missing += _undocumented(node.body, f"{node.name}.")
    return missing


@pytest.mark.parametrize("tree", MODULES)
def test_every_module_and_public_name_has_a_docstring(tree: ast.Module) -> None:
    assert ast.get_docstring(tree)
    assert _undocumented(tree.body) == []


def test_the_package_itself_exports_nothing() -> None:
    """Every module is imported by its own name, so that a command pays only for what it uses."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    assert len(tree.body) == 1
    assert ast.get_docstring(tree)


def test_every_protocol_error_has_its_own_registered_reason() -> None:
    family = errors.ProtocolError.__subclasses__()
    assert {error.reason for error in family} <= errors.REASON_CODES
    assert len({error.reason for error in family}) == len(family)


def test_the_registry_is_that_of_the_specification() -> None:
    printed = """malformed expired duplicate unsupported_kind unsupported_profile verification_failed not_target not_found
    busy internal invalid_surface conversation_not_found work_closed work_container_mismatch legacy_field_rejected"""
    assert frozenset(printed.split()) == errors.REASON_CODES
