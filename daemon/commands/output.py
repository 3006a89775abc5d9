"""Answers and errors that the commands of aghd print."""

from collections.abc import Iterable

from aghbus.daemon.commands import FAILED, OK, USAGE
from aghbus.daemon.config.display import problems_text
from aghbus.daemon.config.layers import Problem
from aghbus.protocol.text import escape
from aghbus.store.host.stdio import write, write_error


def answer(text: str) -> int:
    """Print an answer; exit code 0."""
    write(text + "\n")
    return OK


def fail(message: str, hint: str) -> int:
    """Report a failure while running; exit code 1."""
    write_error(f"aghd: {escape(message)}\n" + (f"    hint: {escape(hint)}\n" if hint else ""))
    return FAILED


def refuse(problems: Iterable[Problem]) -> int:
    """Report every problem of the configuration; exit code 2."""
    rows = list(problems)
    count = f"{len(rows)} problem{'s' if len(rows) > 1 else ''}"
    write_error(f"aghd: the configuration has {count}\n{problems_text(rows)}\n")
    return USAGE
