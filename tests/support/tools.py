"""Programs of other projects that some tests need."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest


def require_tool(name: str) -> str:
    """The path of the program called `name`. Without it the test is skipped; where `CI=true`, it fails."""
    found = shutil.which(name)
    if found is None:
        _lack(f"{name} is not installed")
    return found


class McpTools(NamedTuple):
    """What `make tools` installs: Node, the programs that it runs, and the Python that has the official SDK."""

    node: Path
    conformance: Path
    inspector: Path
    python: Path


def require_mcp_tools() -> McpTools:
    """Without them the test is skipped; where `CI=true`, it fails."""
    modules = "node_modules/@modelcontextprotocol"
    return McpTools(
        _of_make_tools("node/bin/node"),
        _of_make_tools(f"{modules}/conformance/dist/index.js"),
        _of_make_tools(f"{modules}/inspector/clients/launcher/build/index.js"),
        _of_make_tools("venv/bin/python"),
    )


class Generators(NamedTuple):
    """What `make tools` installs to make clients of an OpenAPI document: programs, and the Python that a made client needs."""

    openapi_typescript: list[str]
    tsc: list[str]
    openapi_python_client: Path
    python: Path


def require_generators() -> Generators:
    """Without them the test is skipped; where `CI=true`, it fails."""
    node = str(_of_make_tools("node/bin/node"))
    return Generators(
        [node, str(_of_make_tools("node_modules/openapi-typescript/bin/cli.js"))],
        [node, str(_of_make_tools("node_modules/typescript/bin/tsc"))],
        _of_make_tools("venv/bin/openapi-python-client"),
        _of_make_tools("venv/bin/python"),
    )


def require_npm() -> list[str]:
    """The command npm that `make tools` installs. Without it the test is skipped; where `CI=true`, it fails."""
    return [str(_of_make_tools(f"node/{path}")) for path in ("bin/node", "lib/node_modules/npm/bin/npm-cli.js")]


def require_node() -> Path:
    """Node that `make tools` installs. Without it the test is skipped; where `CI=true`, it fails."""
    return _of_make_tools("node/bin/node")


def require_pyright() -> Path:
    """The type checker that `make tools` installs. Without it the test is skipped; where `CI=true`, it fails."""
    return _of_make_tools("venv/bin/basedpyright")


def require_axe() -> Path:
    """The script of axe-core that `make tools` installs. Without it the test is skipped; where `CI=true`, it fails."""
    return _of_make_tools("node_modules/axe-core/axe.min.js")


def _of_make_tools(path: str) -> Path:
    found = Path(__file__).parent.parent.parent / ".tools" / path
    if not found.exists():
        _lack(f".tools/{path} is missing: run `make tools`")
    return found


def require_agent_hosts() -> str:
    """The folders of the programs that `make mcp-hosts` installs, as a PATH. Without them the test is skipped; where `CI=true`, it
    fails."""
    root = Path(__file__).parent.parent.parent / ".tools"
    found = os.pathsep.join(map(str, (root / "node_modules" / ".bin", root / "node" / "bin")))
    for program in ("claude", "codex", "gemini", "node"):
        if shutil.which(program, path=found) is None:
            _lack(f"{program} is not in .tools: run `make mcp-hosts`")
    return found


def _lack(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and nothing may be skipped here")
    pytest.skip(reason)
