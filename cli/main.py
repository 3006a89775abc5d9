"""The entry of `aghctl`: from argv to a command, and from whatever happens to an exit code."""

from __future__ import annotations

import os
import sys

from aghbus.cli.app.arguments import GLOBAL_OPTIONS, HelpWanted, defaults, parse, take_globals
from aghbus.cli.app.errors import BROKEN_PIPE, INTERRUPTED, YES, exit_code_of
from aghbus.cli.app.output import Output, flush, write
from aghbus.cli.app.registry import COMMANDS, GROUPS, load, longest, members
from aghbus.cli.context import Context
from aghbus.client.errors import ClientError, Unexpected, UsageError
from aghbus.protocol.base.spelling import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def entry(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (the process's arguments when None) and return its exit code (docs/cli.md)."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from aghbus.store.host.stdio import reopen_closed

        reopen_closed()
    words = list(sys.argv[1:] if argv is None else argv)
    options = defaults(GLOBAL_OPTIONS)
    try:
        code = _run(words, options)
        flush()
        return code
    except ClientError as error:
        return _report(error, options, words)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return BROKEN_PIPE
    except Exception as error:
        if os.environ.get("AGHCTL_TRACEBACK"):
            raise
        hint = "a defect of aghctl: set AGHCTL_TRACEBACK=1 and run again to see where"
        return _report(Unexpected(f"{type(error).__name__}: {error}", hint), options, words)


def _run(words: list[str], options: dict[str, Any]) -> int:
    name = ""
    if words[:1] == ["help"]:
        return _help(" ".join(words[1:]))
    try:
        name, rest = _name(words, options)
        if name not in COMMANDS:
            return _help(name)
        command = load(name)
        values = parse(command, rest, options)
    except HelpWanted:
        return _help(name or _group(words))
    except UsageError as error:
        if name and not error.hint:
            error.hint = f"see aghctl {name} --help"
        raise
    return command.run(Context(options), values)


def _name(words: list[str], options: dict[str, Any]) -> tuple[str, list[str]]:
    """The full name of the command that `words` begin with ("" or a group when help is wanted) and what follows it."""
    if words[:1] == ["--version"]:
        return "version", words[1:]
    rest = take_globals(words, options)
    if not rest:
        raise UsageError("which command?", "aghctl --help lists all")
    first = rest.pop(0)
    if first not in GROUPS:
        name = longest([first, *rest]) or _known(first, COMMANDS)
        return name, rest[len(name.split()) - 1 :]
    try:
        rest = take_globals(rest, options)
    except HelpWanted:
        return first, []
    if not rest:
        raise UsageError(f"{first}: which command?", f"one of: {', '.join(members(first))}")
    second = _known(rest.pop(0), members(first), f"{first} ")
    return f"{first} {second}", rest


def _known(word: str, names: Sequence[str] | dict[str, tuple[str, str]], before: str = "") -> str:
    if word in names:
        return word
    firsts = list(dict.fromkeys(name.split()[0] for name in names))
    near = nearest(word, [*firsts, *([] if before else GROUPS)])
    hint = f"did you mean {before}{near}?" if near else f"aghctl {before}--help lists all"
    raise UsageError(f"unknown command {before}{word}", hint)


def _group(words: Sequence[str]) -> str:
    return next((word for word in words if word in GROUPS), "")


def _help(name: str) -> int:
    from aghbus.cli.app.help import text_of

    write(text_of(name))
    return YES


def _report(error: ClientError, options: dict[str, Any], words: Sequence[str]) -> int:
    form = options["output"] or _form_in(words)
    try:  # noqa: SIM105 - contextlib is slow to load
        flush()
    except (BrokenPipeError, ClientError):
        pass  # this error is the one to tell
    Output(form).error(error)
    return exit_code_of(error)


def _form_in(words: Sequence[str]) -> str:
    """The form that a command line asks for which could not be parsed, so that its error comes in that form too."""
    joined = " ".join(words) + " "
    wanted = any(f"{flag}json" in joined for flag in ("-o ", "-o", "--output ", "--output="))
    return "json" if wanted else "human"


if __name__ == "__main__":
    sys.exit(entry())
