"""Command lines: what a command takes, declared as values, and the parser that reads argv by it.

Not argparse, because start-up is a feature: importing it and adding one option loads gettext, shutil and every
compression module, twice the time of the bare interpreter (`python -X importtime`). The declarations also feed the
help texts and the shell completions. Long options are never abbreviated; `--` ends the options.
"""

from __future__ import annotations

from aghbus.client.errors import UsageError
from aghbus.protocol.base.spelling import nearest

TYPE_CHECKING = False  # typing itself would cost a fifth of the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from aghbus.cli.context import Context

    Run = Callable[[Context, dict[str, Any]], int]
    Convert = Callable[[str], Any]

LONGEST_SPAN = 366 * 86_400
"""Seconds, ours: a longer span of time is a mistake, and some 300 years end in a number that no clock holds."""


class Option:
    """One option. `flags` are its spellings, the last one long and naming the value; no `metavar` makes it a switch.

    `convert` turns the text into the value and raises ValueError with the rule that it breaks. `repeat` collects a list.
    """

    __slots__ = ("choices", "convert", "default", "flags", "help", "metavar", "name", "repeat", "required")

    def __init__(
        self,
        flags: str,
        help: str,
        metavar: str = "",
        *,
        convert: Convert = str,
        default: Any = None,
        repeat: bool = False,
        required: bool = False,
        choices: tuple[str, ...] = (),
    ) -> None:
        self.flags = flags.split()
        self.name = self.flags[-1].lstrip("-").replace("-", "_")
        self.help = help
        self.metavar = metavar or ("|".join(choices) if choices else "")
        self.convert = convert
        self.repeat = repeat
        self.required = required
        self.choices = choices
        self.default = default if default is not None else (None if self.metavar else False)


class Positional:
    """One argument by position. `optional` ones are None when left out; `rest` takes all that are left, as a list."""

    __slots__ = ("choices", "help", "metavar", "name", "optional", "rest")

    def __init__(
        self, metavar: str, help: str, *, optional: bool = False, rest: bool = False, choices: tuple[str, ...] = ()
    ) -> None:
        self.metavar = metavar
        self.name = metavar.lower()
        self.help = help
        self.optional = optional
        self.rest = rest
        self.choices = choices


class Command:
    """One command: what it takes, examples that run as printed, and the function that carries it out.

    `run(context, values)` returns the exit code; `values` holds every declared name. `offline` commands ask no daemon.
    """

    __slots__ = ("description", "examples", "options", "positionals", "run")

    def __init__(
        self,
        run: Run,
        *,
        description: str,
        examples: Sequence[str],
        positionals: Sequence[Positional] = (),
        options: Sequence[Option] = (),
    ) -> None:
        self.run = run
        self.description = description
        self.examples = examples
        self.positionals = positionals
        self.options = options


class HelpWanted(Exception):
    """`-h` or `--help` was met."""


def seconds(text: str) -> float:
    """A span of time: `30s`, `5m`, `24h`, `7d`, or a number of seconds. ValueError names the rule."""
    from aghbus.protocol.base.durations import parse_duration  # slow to load

    try:
        span = parse_duration(text)
    except ValueError:
        raise ValueError("must be a span of time such as 30s, 5m, 24h, or a number of seconds") from None
    if span > LONGEST_SPAN:
        raise ValueError("must be a span of time of 366d at most")
    return span


def lifetime(text: str) -> float:
    """A span of time longer than none."""
    span = seconds(text)
    if not span:
        raise ValueError("must be longer than 0")
    return span


def some(text: str) -> str:
    """Any text but the empty one, which a variable of a script that is not set leaves."""
    if not text:
        raise ValueError("must not be empty")
    return text


def whole(text: str) -> int:
    """A whole number, not negative."""
    if not (text.isascii() and text.isdigit()) or len(text) > 18:  # 18 digits fit 64 bits
        raise ValueError("must be a whole number, 0 or more")
    return int(text)


def limit(text: str) -> int:
    """How many rows to ask for: the API gives 1 to 1000 at a time."""
    number = whole(text)
    if not 1 <= number <= 1000:
        raise ValueError("must be a number from 1 to 1000")
    return number


GLOBAL_OPTIONS = (
    Option(
        "--name",
        "instance to talk to (default: $AGHD_NAME, this host's name, or the only one running)",
        "NAME",
        convert=some,
    ),
    Option(
        "--socket", "Unix socket of the daemon, instead of a name (default: $AGHD_API_SOCKET)", "PATH", convert=some
    ),
    Option("--api", "URL of the daemon's TCP API, such as http://127.0.0.1:4637", "URL", convert=some),
    Option(
        "--token-file", "file with the bearer token for --api (default: $AGHD_API_TOKEN_FILE, the instance's)", "FILE"
    ),
    Option("-o --output", "form of the output", choices=("human", "json", "jsonl")),
    Option("--timeout", "how long to wait for the daemon (default 30s)", "TIME", convert=lifetime),
)
"""Understood before and after the name of every command."""


def defaults(options: Sequence[Option]) -> dict[str, Any]:
    """The value of every option of `options` when it is not given."""
    return {option.name: [] if option.repeat else option.default for option in options}


def take_globals(argv: Sequence[str], values: dict[str, Any]) -> list[str]:
    """Read the global options at the head of `argv` into `values`; what follows them is returned."""
    table = _by_flag(GLOBAL_OPTIONS)
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        _take_option(rest, table, values)
    return rest


def parse(command: Command, argv: Sequence[str], values: dict[str, Any]) -> dict[str, Any]:
    """The values of `argv` for `command`; global options go to `values`. Raises UsageError or HelpWanted."""
    options = [*command.options, *GLOBAL_OPTIONS]
    table = _by_flag(options)
    own = defaults(command.options)
    collected: dict[str, Any] = {**values, **own}
    words: list[str] = []
    rest = list(argv)
    while rest:
        if rest[0] == "--":
            words += rest[1:]
            break
        if rest[0].startswith("-") and rest[0] != "-":
            _take_option(rest, table, collected)
        else:
            words.append(rest.pop(0))
    values.update((name, collected[name]) for name in values)
    for option in command.options:
        if option.required and collected[option.name] in (None, []):
            raise UsageError(f"{option.flags[-1]} {option.metavar} is required")
    own.update((name, collected[name]) for name in own)
    own.update(_positionals(command.positionals, words))
    return own


def _by_flag(options: Sequence[Option]) -> dict[str, Option]:
    return {flag: option for option in options for flag in option.flags}


def _take_option(rest: list[str], table: dict[str, Option], values: dict[str, Any]) -> None:
    """Consume one option, and its value, from the head of `rest`."""
    word = rest.pop(0)
    if word in ("-h", "--help"):
        raise HelpWanted
    if word.startswith("--"):
        flag, equals, value = word.partition("=")
        given = value if equals else None
    else:
        flag, given = word[:2], word[2:] or None
    option = table.get(flag)
    if option is None:
        raise UsageError(f"unknown option {flag}", _did_you_mean(flag, table))
    if not option.metavar:
        if given is not None:
            raise UsageError(f"{flag} takes no value")
        values[option.name] = True
        return
    if given is None:
        if not rest or rest[0] in table:
            raise UsageError(f"{flag} needs a value: {option.metavar}")
        given = rest.pop(0)
    value = _converted(option, flag, given)
    values[option.name] = [*values[option.name], value] if option.repeat else value


def _converted(option: Option, flag: str, text: str) -> Any:
    if option.choices and text not in option.choices:
        raise UsageError(f"{flag}: must be one of {', '.join(option.choices)}")
    try:
        return option.convert(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def _positionals(declared: Sequence[Positional], words: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for place, positional in enumerate(declared):
        word = words[place] if place < len(words) else None
        if word is None and not positional.optional:
            raise UsageError(f"{positional.metavar} is missing: {positional.help}")
        if word is not None and positional.choices and word not in positional.choices:
            raise UsageError(f"{positional.metavar}: must be one of {', '.join(positional.choices)}")
        if word == "" and not positional.optional and not positional.rest:
            raise UsageError(f"{positional.metavar} must not be empty: {positional.help}")
        if positional.rest:
            return {**values, positional.name: list(words[place:])}
        values[positional.name] = word
    if len(words) > len(declared):
        raise UsageError(
            f"unexpected argument {words[len(declared)]!r}",
            "put text with spaces between quotes, and -- before text that begins with -",
        )
    return values


def _did_you_mean(word: str, known: Sequence[str] | dict[str, Option]) -> str:
    near = nearest(word, known)
    return f"did you mean {near}? --help lists all" if near else "--help lists all"
