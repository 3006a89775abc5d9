"""`aghctl chain check` (offline)."""

from __future__ import annotations

from aghbus.cli.app.errors import NO, YES
from aghbus.cli.app.findings import finding_line
from aghbus.cli.app.text import safe
from aghbus.cli.chains.file import CHAIN_FILE, read
from aghbus.cli.context import Context
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Command


def run(context: Context, values: dict[str, Any]) -> int:
    """Print every error of a chain file; 1 when there is any."""
    from msgspec.structs import asdict  # slow to load

    document, faults = read(values["file"])
    findings = [asdict(fault) for fault in faults]
    context.output.answer({"ok": not findings, "findings": findings}, lambda answer: _text(document, answer))
    return NO if findings else YES


def _text(document: Any, answer: dict[str, Any]) -> str:
    if answer["ok"]:
        return f"{safe(document['name'])}: {len(document['nodes'])} nodes, {len(document.get('edges', ()))} edges, ok"
    return "\n".join(map(finding_line, answer["findings"]))


COMMANDS = {
    "chain check": Command(
        run,
        description=(
            "Check a chain file: nodes, edges, conditions and templates, every error with its place (a JSON Pointer).\n"
            "Exits 1 if there is any. Needs no daemon."
        ),
        examples=["aghctl chain check research.toml", "aghctl chain check - -o json < research.json"],
        arguments=[CHAIN_FILE],
    )
}
