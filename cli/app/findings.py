"""Findings of the adapters (`{path, rule, severity, message}`) as text or as JSON lines."""

from __future__ import annotations

from collections.abc import Iterable

from aghbus.cli.app.output import Output, dumps
from aghbus.cli.app.text import safe
from aghbus.host.stdio import write_error
from aghbus.protocol.base.annotations import Any


def finding_line(finding: dict[str, Any]) -> str:
    """One finding in one line, escaped."""
    return safe(f"{finding['severity']} {finding['path'] or '(whole)'} {finding['rule']}: {finding['message']}")


def print_findings(output: Output, place: str, number: int, findings: Iterable[dict[str, Any]]) -> None:
    """Print findings to standard error. `place` is `line` for an input line and `seq` for a delivered message; `number` is
    its number."""
    for finding in findings:
        if output.human:
            write_error(f"{place} {number}: {finding_line(finding)}\n")
        else:
            write_error(dumps({place: number, **finding}) + "\n")
