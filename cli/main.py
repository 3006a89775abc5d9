"""The entry of `aghctl`: from argv to a command, and from every error to an exit code."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from aghbus.cli.app.errors import BROKEN_PIPE, INTERRUPTED, YES, exit_code_of
from aghbus.cli.app.output import Output
from aghbus.cli.app.registry import PROGRAM
from aghbus.cli.context import Context
from aghbus.client.errors import ClientError, RefusedByDaemon, Unexpected, UsageError
from aghbus.host.command_line import CommandLineError, HelpRequested
from aghbus.host.stdio import OutputError, flush, reopen_closed, write


def entry(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (the process's arguments when None) and return its exit code (docs/cli.md)."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        reopen_closed()
    PROGRAM.complete()
    code = _exit_code(list(sys.argv[1:] if argv is None else argv))
    if argv is None:
        gc.freeze()  # the process ends: looking for garbage would take a tenth of a short command
    return code


def _exit_code(words: Sequence[str]) -> int:
    """Run the command, and report every error."""
    output = Output(_form_in(words))
    try:
        code = _run(words, output)
        flush()
        return code
    except ClientError as error:
        return _report(error, output)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return BROKEN_PIPE
    except OutputError as error:
        return _report(Unexpected(str(error), code="output"), output)
    except Exception as error:
        if os.environ.get("AGHCTL_TRACEBACK"):
            raise
        hint = "a bug in aghctl: set AGHCTL_TRACEBACK=1 and run again to see where"
        return _report(Unexpected(f"{type(error).__name__}: {error}", hint), output)


def _run(words: Sequence[str], output: Output) -> int:
    try:
        command, values = PROGRAM.parse(words or ["help"])
    except HelpRequested as request:
        write(str(request))
        return YES
    except CommandLineError as error:
        raise UsageError(error.message, error.hint) from None
    output.form, output.color = values["output"] or "human", values["color"] or "auto"
    context = Context(values, output)
    for argument in command.arguments:
        if argument.resolve and (values[argument.dest] is not None or values.get(argument.substitute)):
            values[argument.dest] = argument.resolve(context, values[argument.dest])
    try:
        return command.run(context, values)
    except RefusedByDaemon as error:
        if output.human:
            error.hint = context.pasteable(error.hint)
        raise


def _report(error: ClientError, output: Output) -> int:
    try:  # noqa: SIM105 - contextlib is slow to load
        flush()
    except (BrokenPipeError, OutputError):
        pass  # this error is the one to report
    output.error(error)
    return exit_code_of(error)


def _form_in(words: Sequence[str]) -> str:
    """The form of output that the command line asks for, for its error: it may be one that cannot be parsed."""
    joined = " ".join(words) + " "
    wanted = any(f"{flag}json" in joined for flag in ("-o ", "-o", "--output ", "--output="))
    return "json" if wanted else "human"


if __name__ == "__main__":
    sys.exit(entry())
