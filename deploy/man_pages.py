"""Write the manual pages of aghctl and aghd: `python deploy/man_pages.py FOLDER EPOCH`.

Each program has one page, and one for each first word of its commands: aghctl(1), aghctl-work(1), aghd-run(1). They are made from
the declarations that the help is made from. Their date is that of EPOCH, a Unix time in seconds.
"""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from aghbus.cli.app.registry import PROGRAM as AGHCTL
from aghbus.daemon.main import PROGRAM as AGHD
from aghbus.host.command_line import Argument, Program
from aghbus.host.help_text import usage
from aghbus.host.version import VERSION

_ESCAPES = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti", '"': "\\(dq"}
"""Characters that groff would show as another one, or take as its own."""


def write(folder: Path, epoch: int) -> None:
    """Write all pages into `folder`."""
    date = f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%d}"
    for program in (AGHCTL, AGHD):
        (folder / f"{program.name}.1").write_text(_page(program.name, date, _of_program(program)), "ascii")
        for word in program.below(""):
            name = f"{program.name}-{word}"
            (folder / f"{name}.1").write_text(_page(name, date, _of_word(program, word)), "ascii")


def _page(name: str, date: str, lines: Iterator[str]) -> str:
    title = f'.TH "{_text(name.upper())}" 1 "{date}" "aghbus {VERSION}" "aghbus"'
    return "\n".join([title, *lines]) + "\n"


def _of_program(program: Program) -> Iterator[str]:
    yield from _name(program.name, program.description)
    yield from [".SH SYNOPSIS", _text(f"{program.name} COMMAND [options]"), ".SH COMMANDS"]
    for word, summary in program.below("").items():
        yield from [".TP", f"{_bold(f'{program.name}-{word}')}(1)", _text(summary)]
    if program.global_arguments:
        yield from [".SH GLOBAL OPTIONS", "They may stand before and after the words of every command."]
        yield from _options(program.global_arguments)
    title, _, notes = program.epilog.partition(":\n")
    yield from [f".SH {_text(title.upper())}" if notes else ".SH NOTES", *_literal((notes or title).split("\n"))]
    yield from [".SH EXAMPLES", *_literal(program.examples)]


def _of_word(program: Program, word: str) -> Iterator[str]:
    """The page of all commands that begin with `word`."""
    names = [name for name in program.commands if name.split()[0] == word]
    commands = {f"{program.name} {name}": program.load(name) for name in names}
    yield from _name(f"{program.name}-{word}", program.groups.get(word) or program.commands[word][1])
    yield from [".SH SYNOPSIS", *_literal([usage(name, command.arguments) for name, command in commands.items()])]
    for name, command in commands.items():
        yield from [".SH DESCRIPTION"] if len(commands) == 1 else [f".SH {_text(name)}"]
        yield _text(command.description.replace("\n", " "))
        yield from _options(command.arguments)
        yield from [".PP", "Examples:", *_literal(command.examples)]
    yield from [".SH SEE ALSO", f"{_bold(program.name)}(1), also for the options of every command"]


def _name(name: str, summary: str) -> list[str]:
    return [".SH NAME", f"{_text(name)} \\- {_text(summary[:1].lower() + summary[1:].removesuffix('.'))}"]


def _options(arguments: tuple[Argument, ...] | list[Argument]) -> Iterator[str]:
    for argument in arguments:
        flags = argument.spellings if not argument.is_positional else (argument.metavar,)
        value = f" \\fI{_text(argument.metavar)}\\fR" if not argument.is_positional and argument.takes_value else ""
        choices = () if "metavar" in argument.options else argument.options.get("choices") or ()
        allowed = f" (one of: {', '.join(choices)})" if choices else ""
        yield from [".TP", ", ".join(map(_bold, flags)) + value, _text(argument.options["help"] + allowed)]


def _literal(lines: list[str] | tuple[str, ...]) -> list[str]:
    """Lines that stay as they are."""
    return [".nf", ".RS 4", *map(_text, lines), ".RE", ".fi"] if lines else []


def _bold(text: str) -> str:
    return f"\\fB{_text(text)}\\fR"


def _text(text: str) -> str:
    """`text` in roff, in ASCII, not as a request."""
    shown = "".join(_ESCAPES.get(char) or (char if char.isascii() else f"\\[u{ord(char):04X}]") for char in text)
    return f"\\&{shown}" if shown.startswith(".") else shown


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
