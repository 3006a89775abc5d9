"""ADR 0007 lists every private name of nats-py in use, and only two modules use any."""

import ast
import inspect
import re
from pathlib import Path

import nats.aio.client
import nats.aio.transport
import nats.protocol.parser

ROOT = Path(__file__).parent.parent.parent
ADR = ROOT / "docs" / "adr" / "0007-messages-parsed-by-ourselves.md"
MODULES = {"client.py", "parser.py"}
LIBRARY = "".join(map(inspect.getsource, (nats.aio.client, nats.aio.transport, nats.protocol.parser)))
THEIRS = set(re.findall(r"\b_[a-z]\w*", LIBRARY))
"""Private names of the library's modules that we extend."""


def private_names(module: Path) -> set[str]:
    """Private names of the library that `module` reads, sets or overrides."""
    nodes = list(ast.walk(ast.parse(module.read_text())))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return {name for name in names if not name.endswith("__")} & THEIRS


def foreign_private_names(module: Path) -> set[str]:
    """Private names of the library that `module` reads or sets on anything but `self`."""
    names = {
        node.attr
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Attribute)
        and re.match("_[a-z]", node.attr)
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
    }
    return names & THEIRS


def test_the_decision_lists_every_private_name_in_use() -> None:
    table = ADR.read_text().partition("## Names of the library that are not documented")[2]
    listed = {name for name in re.findall(r"`(_?\w+)`", table) if name.startswith("_")}
    used = set().union(*(private_names(ROOT / "daemon" / "nats" / name) for name in MODULES))
    assert used == listed


def test_no_other_module_uses_private_names_of_the_connection() -> None:
    folders = (ROOT / "daemon" / name for name in ("nats", "jetstream", "artifacts"))
    others = [module for folder in folders for module in folder.glob("*.py") if module.name not in MODULES]
    assert {module.name: names for module in others if (names := foreign_private_names(module))} == {}
