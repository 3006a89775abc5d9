"""Findings of the adapters on standard error: a line for a person, or a JSON object."""

from __future__ import annotations

from aghbus.cli.app.output import dumps
from aghbus.cli.app.text import safe
from aghbus.store.host.stdio import write_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from aghbus.cli.app.output import Output


def print_findings(output: Output, place: str, number: int, findings: Iterable[dict[str, Any]]) -> None:
    """Write findings (`{path, rule, severity, message}`) about a line of ours (`line`) or a message for us (`seq`)."""
    for finding in findings:
        if output.human:
            path = finding["path"] or "(whole)"
            words = f"{finding['severity']} {path} {finding['rule']}: {finding['message']}"
            write_error(f"{place} {number}: {safe(words)}\n")
        else:
            write_error(dumps({place: number, **finding}) + "\n")
