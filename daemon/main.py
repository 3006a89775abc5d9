"""The command line of `aghd`: the table of its commands, and the way from argv to an exit code.

Exit codes: 0 success; 1 a failure while running, or a failed check; 2 a usage or configuration error; 141 the reader of
standard output went away. Only the module of the command that is called is imported, so that help and version answer immediately.
"""

from __future__ import annotations

import sys

from aghbus.daemon.commands import BROKEN_PIPE, FAILED, OK, USAGE
from aghbus.host.command_line import CommandLineError, HelpRequested, Program
from aghbus.host.stdio import OutputError, flush, reopen_closed, write, write_error

TYPE_CHECKING = False  # importing typing costs 4 ms
if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = Program(
    "aghd",
    description="A peer on the AGH Network.",
    package="aghbus.daemon.commands",
    commands={
        "run": ("run", "run the daemon in the foreground"),
        "config show": ("config", "print every key, its value and its origin"),
        "config check": ("config", "print every problem"),
        "check-store": ("check_store", "check whether the store is intact"),
        "restore": ("restore", "restore the store from a backup"),
        "version": ("version", "print the version"),
    },
    groups={"config": "show or check the configuration"},
    examples=("aghd run --name ops", "aghd config show --name ops", "aghd version -o json"),
    epilog="configuration: options over AGHD_* variables over NATS_URL and NATS_CONTEXT over TOML files over defaults",
)


def entry(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (the process's arguments when None) and return its exit code."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        reopen_closed()
    PROGRAM.complete()
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        flush()
        return code
    except BrokenPipeError:
        return BROKEN_PIPE
    except OutputError as error:
        write_error(f"aghd: {error}\n")
        return FAILED


def _run(words: Sequence[str]) -> int:
    try:
        command, values = PROGRAM.parse(words)
        return command.run(values)
    except HelpRequested as request:
        write(str(request))
        return OK
    except CommandLineError as error:
        write_error(f"aghd: {error.message}\n" + (f"    hint: {error.hint}\n" if error.hint else ""))
        return USAGE
