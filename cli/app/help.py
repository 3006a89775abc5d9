"""Help texts, made from the declarations."""

from __future__ import annotations

from aghbus.cli.app.arguments import GLOBAL_OPTIONS, Command, Option, Positional
from aghbus.cli.app.errors import EXIT_CODES
from aghbus.cli.app.registry import COMMANDS, GROUPS, load, members
from aghbus.client.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COLUMN = 30
"""Where the second column begins."""
_EXAMPLES = (
    "aghctl status",
    "aghctl --name ops whois test.run",
    'aghctl --name ops work open --to patch-worker --text "Run the migration smoke test"',
    "aghctl --name patch-worker inbox next --wait 30s",
    "aghctl demo",
)


def text_of(name: str) -> str:
    """The help of a command, of a group, or ("") of the whole tool. Raises UsageError for an unknown name."""
    if not name:
        return _top()
    if name in GROUPS:
        return _group(name)
    if name not in COMMANDS:
        raise UsageError(f"unknown command {name}", "aghctl --help lists all")
    return _command(name, load(name))


def usage(name: str, command: Command) -> str:
    """The command line of a command in one line."""
    required = [f"{option.flags[-1]} {option.metavar}" for option in command.options if option.required]
    words = [f"[{word.metavar}]" if word.optional else word.metavar for word in command.positionals if not word.rest]
    rest = ["[options]"] if len(required) < len(command.options) else []
    ends = [(f"-- {word.metavar}...", word.optional) for word in command.positionals if word.rest]
    rest += [f"[{end}]" if optional else end for end, optional in ends]
    return " ".join(["aghctl", name, *words, *required, *rest])


def _top() -> str:
    rows: list[tuple[str, str]] = []
    for name, (_, summary) in COMMANDS.items():
        group = name.split()[0]
        if group not in GROUPS:
            rows.append((name, summary))
        elif name == f"{group} {members(group)[0]}":
            rows.append((group + " …", f"{GROUPS[group]}: {', '.join(members(group))}"))
    codes = [(str(code), meaning) for code, meaning in EXIT_CODES]
    return "\n".join(
        [
            "usage: aghctl [global options] COMMAND [options]",
            "",
            "Talk to aghd, the daemon that makes this machine's agent a peer on the AGH Network.",
            *_section("commands", rows),
            *_section("global options, before or after the command", map(_option_row, GLOBAL_OPTIONS)),
            *_section("exit codes", codes),
            *_examples(_EXAMPLES),
            "",
            "aghctl COMMAND --help says more about each.",
            "",
        ]
    )


def _group(group: str) -> str:
    rows = [(name, COMMANDS[f"{group} {name}"][1]) for name in members(group)]
    head = [f"usage: aghctl {group} COMMAND [options]", "", f"{group}: {GROUPS[group]}."]
    return "\n".join(
        [*head, *_section("commands", rows), "", f"aghctl {group} COMMAND --help says more about each.", ""]
    )


def _command(name: str, command: Command) -> str:
    return "\n".join(
        [
            f"usage: {usage(name, command)}",
            "",
            command.description,
            *_section("arguments", map(_positional_row, command.positionals)),
            *_section("options", map(_option_row, command.options)),
            *_section("global options", map(_option_row, GLOBAL_OPTIONS)),
            *_examples(command.examples),
            "",
        ]
    )


def _section(title: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    lines: list[str] = []
    for left, right in rows:
        if len(left) > COLUMN - 4:
            lines += [f"  {left}", " " * COLUMN + right]
        else:
            lines.append(f"  {left:<{COLUMN - 2}}{right}")
    return ["", f"{title}:", *lines] if lines else []


def _examples(examples: Sequence[str]) -> list[str]:
    return ["", "examples:", *(f"  {example}" for example in examples)]


def _option_row(option: Option) -> tuple[str, str]:
    flags = ", ".join(option.flags)
    repeat = " (repeat for several)" if option.repeat else ""
    return (f"{flags} {option.metavar}".rstrip(), option.help + repeat)


def _positional_row(positional: Positional) -> tuple[str, str]:
    choices = f": {', '.join(positional.choices)}" if positional.choices else ""
    return (positional.metavar, positional.help + choices)
