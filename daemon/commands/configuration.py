"""Shared by the commands of aghd that read the configuration: options, loading of settings, and printing."""

import os
from collections.abc import Iterable
from typing import Any

from aghbus.daemon.base.logs import verbosity_level
from aghbus.daemon.commands import FAILED, OK, USAGE
from aghbus.daemon.config.display import key_options, problems_text
from aghbus.daemon.config.folders import this_host
from aghbus.daemon.config.layers import Problem
from aghbus.daemon.config.loader import Inspect, Loaded, load_settings
from aghbus.host.command_line import Argument
from aghbus.host.stdio import write, write_error
from aghbus.protocol.base.text import escape

OPTIONS = (
    Argument("-v", "--verbose", action="count", default=0, help="log level info; -vv: debug"),
    *key_options(),
)
"""`--verbose`, `--config`, and an option for every key of the configuration that may have one."""


def load(values: dict[str, Any], inspect: Inspect | None = None) -> Loaded:
    """The settings of a command line, the environment and the files. Raises ConfigError with every problem."""
    options = dict(values)
    if options["log.level"] is None:
        options["log.level"] = verbosity_level(options["verbose"])
    return load_settings(options, os.environ, this_host(os.environ), inspect=inspect)


def load_checked(values: dict[str, Any]) -> Loaded:
    """The same; the files that the settings name are read and checked too."""
    from aghbus.daemon.commands.named_files import check_named_files  # imports much that `show` does not need

    return load(values, lambda loaded, faulty: check_named_files(loaded, faulty, os.environ))


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
