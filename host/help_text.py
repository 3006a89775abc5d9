"""Help texts and completion, by argparse and argcomplete."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from aghbus.host.arguments import Argument, Entry
from aghbus.protocol.base.annotations import Any


def command_help(
    prog: str, description: str, examples: Sequence[str], arguments: Sequence[Argument], common: Sequence[Argument]
) -> str:
    """The help text of a command; `common` are the arguments of every command."""
    parser = _Parser(prog=prog, usage=usage(prog, arguments), description=description, epilog=_examples(examples))
    _add_arguments(parser, arguments)
    _add_common(parser, common)
    return parser.format_help()


def group_help(
    prog: str,
    description: str,
    epilog: str,
    examples: Sequence[str],
    entries: Sequence[Entry],
    common: Sequence[Argument],
) -> str:
    """The help text of several commands, `entries`."""
    epilog = "\n\n".join(filter(None, (epilog, _examples(examples))))
    parser = _Parser(prog=prog, usage=f"{prog} COMMAND [options]", description=description, epilog=epilog)
    _add_entries(parser, entries, common)
    _add_common(parser, common)
    return parser.format_help()


def complete(prog: str, entries: Sequence[Entry], common: Sequence[Argument]) -> None:
    """Answer the shell, which asks for completions in environment variables, and end the process."""
    import argcomplete

    parser = _Parser(prog=prog, usage=prog)
    _add_entries(parser, entries, common)
    _add_common(parser, common)
    argcomplete.autocomplete(parser, always_complete_options=False)


class _Parser(argparse.ArgumentParser):
    """A parser for help and completion; `Program` parses command lines itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_formatter, **options)


def _add_entries(parser: argparse.ArgumentParser, entries: Sequence[Entry], common: Sequence[Argument]) -> None:
    level = parser.add_subparsers(title="commands", metavar="COMMAND", prog=parser.prog)
    for entry in entries:
        child = level.add_parser(entry.word, help=entry.summary.replace("%", "%%"), usage=parser.prog)
        if entry.below:
            _add_entries(child, entry.below, common)
        elif entry.arguments is not None:
            _add_arguments(child, entry.arguments)
            _add_common(child, common, default=argparse.SUPPRESS)  # keeps the values given before the command


def _add_common(parser: argparse.ArgumentParser, common: Sequence[Argument], **options: Any) -> None:
    if common:
        group = parser.add_argument_group("global options, before or after the command")
        for argument in common:
            _add(group, argument, **options)


def _add_arguments(parser: argparse.ArgumentParser, arguments: Sequence[Argument]) -> None:
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for title in dict.fromkeys(argument.group for argument in arguments if argument.group):
        groups[title] = parser.add_argument_group(title)
    for argument in arguments:
        _add(groups[argument.group], argument)


def _add(parser: argparse._ActionsContainer, argument: Argument, **options: Any) -> None:
    """Declare an argument to argparse, with `options` in place of its own."""
    given = {**argument.options, "help": argument.options["help"].replace("%", "%%"), **options}
    if given.get("action") == "switch":
        given["action"] = argparse.BooleanOptionalAction
    action = parser.add_argument(*argument.flags, **given)
    if argument.completer is not None:
        action.completer = argument.completer  # type: ignore[attr-defined]  # where argcomplete looks for it


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Help in the width of the terminal; asked of the system, since argparse loads shutil for it."""
    try:
        columns = os.get_terminal_size(1).columns
    except (OSError, ValueError):
        columns = 0
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=min(columns or 120, 120) - 2)


def usage(prog: str, arguments: Sequence[Argument]) -> str:
    """The command line in one line: positional arguments, required options, `[options]`, and what follows `--`."""
    required = [f"{one.flags[-1]} {one.metavar}" for one in arguments if one.options.get("required")]
    by_place = [one for one in arguments if one.is_positional]
    words = [_word(one) for one in by_place if one.nargs != "*"]
    trailing = [f"[-- {one.metavar} ...]" for one in by_place if one.nargs == "*"]
    options = ["[options]"] if len(required) + len(by_place) < len(arguments) else []
    return " ".join([prog, *words, *required, *options, *trailing])


def _word(argument: Argument) -> str:
    """A positional argument in a command line."""
    if argument.unless:
        return f"({argument.metavar} | {argument.unless})"
    return f"[{argument.metavar}]" if argument.nargs == "?" else argument.metavar


def _examples(examples: Sequence[str]) -> str:
    return "\n".join(["examples:", *(f"  {example}" for example in examples)]) if examples else ""
