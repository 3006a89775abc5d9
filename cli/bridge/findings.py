"""Prints findings of the adapters to standard error, as text or as JSON lines."""

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
    """Print findings (`{path, rule, severity, message}`). `place` is `line` for an input line and `seq` for a delivered
    message; `number` is its number."""
    for finding in findings:
        if output.human:
            path = finding["path"] or "(whole)"
            words = f"{finding['severity']} {path} {finding['rule']}: {finding['message']}"
            write_error(f"{place} {number}: {safe(words)}\n")
        else:
            write_error(dumps({place: number, **finding}) + "\n")
