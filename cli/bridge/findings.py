"""Prints findings of the adapters to standard error, as text or as JSON lines."""

from __future__ import annotations

from collections.abc import Iterable

from aghbus.cli.app.output import Output, dumps
from aghbus.cli.app.text import safe
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.stdio import write_error


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
