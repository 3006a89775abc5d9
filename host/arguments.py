"""The arguments of a command, and their values from the words of a command line.

Long and short options take a value as `--to x`, `--to=x`, `-o x` or `-ox`, and are never abbreviated. Options and
positional arguments may be mixed. argparse is not used here: importing it and building its parsers takes a fifth of the time
of a short command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from aghbus.protocol.base.annotations import Any
from aghbus.protocol.base.spelling import nearest

HELP = ("-h", "--help")
_VALUELESS = ("store_true", "count", "switch")


class CommandLineError(Exception):
    """The command line breaks a rule. `message` names the argument and the rule, `hint` (may be empty) the next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Argument:
    """One option or positional argument of a command, as a value that commands can share.

    `flags` are the spellings of an option, or the name of a positional argument. `options`:

    - `help`: one line, and `metavar`: the placeholder of the value, for a positional argument its name in capitals;
    - `type`: converts the text; raises ValueError with the rule that the text breaks. `choices`: all allowed values;
    - `nargs` of a positional argument: `?` none or one, `*` all words that are left; otherwise exactly one, not empty;
    - `action` of an option: `append` (a list, empty at first), `store_true`, `count`, or `switch` (`--x` and `--no-x`);
    - `required`, `default`, `dest` (the name of the value).

    `group` is the title in the help text, `completer` one of argcomplete. `synonyms` maps words that people give in place of
    a choice to that choice, for a suggestion. `unless` names an option in place of which a positional argument is given.
    `resolve` turns the value into the one that the command gets; the program calls it, with its own first argument.
    """

    def __init__(
        self,
        *flags: str,
        group: str = "",
        completer: Callable[..., Any] | None = None,
        synonyms: Mapping[str, str] | None = None,
        unless: str = "",
        resolve: Callable[[Any, Any], Any] | None = None,
        **options: Any,
    ) -> None:
        self.flags = flags
        self.group = group
        self.completer = completer
        self.synonyms = synonyms or {}
        self.unless = unless
        self.resolve = resolve
        if self.is_positional:
            if "choices" not in options:
                options.setdefault("metavar", flags[0].upper())
            if "nargs" not in options:
                options.setdefault("type", nonempty)
        if options.get("action") == "append":
            options.setdefault("default", [])
            options["help"] += " (repeat for several)"
        self.options = options

    @property
    def is_positional(self) -> bool:
        """Whether it stands by its place and not behind a flag."""
        return not self.flags[0].startswith("-")

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every flag, with the `--no-…` of a switch."""
        if self.action != "switch":
            return self.flags
        return (*self.flags, *(f"--no-{flag[2:]}" for flag in self.flags))

    @property
    def label(self) -> str:
        """Its name in an error: the flags of an option, the placeholder of a positional argument."""
        if not self.is_positional:
            return "/".join(self.spellings)
        return " or ".join(filter(None, (str(self.options.get("metavar") or self.dest), self.unless)))

    @property
    def substitute(self) -> str:
        """The name of the option that may be given in its place; empty without one."""
        return self.unless.removeprefix("--")

    @property
    def action(self) -> str:
        """What its flag does; empty when it stores one value."""
        return str(self.options.get("action", ""))

    @property
    def takes_value(self) -> bool:
        """Whether a value follows the flag."""
        return self.action not in _VALUELESS

    @property
    def required(self) -> bool:
        """Whether a command line without it is refused."""
        return not self.nargs if self.is_positional else bool(self.options.get("required"))

    @property
    def dest(self) -> str:
        """The name of its value."""
        name = next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])
        return str(self.options.get("dest") or name.lstrip("-").replace("-", "_"))

    @property
    def default(self) -> Any:
        """The value when it is not given."""
        return self.options.get("default", False if self.action == "store_true" else [] if self.nargs == "*" else None)

    @property
    def metavar(self) -> str:
        """The placeholder of its value in a help text."""
        return str(self.options.get("metavar") or self.dest.upper())

    @property
    def nargs(self) -> str:
        """`?`, `*`, or empty for one value."""
        return str(self.options.get("nargs", ""))

    def convert(self, text: str) -> Any:
        """The value of `text`. Raises CommandLineError, and the converter's own exceptions but ValueError."""
        try:
            value = self.options["type"](text) if "type" in self.options else text
        except ValueError as error:
            raise CommandLineError(f"{self.label}: {error}") from None
        choices = self.options.get("choices")
        if choices is not None and value not in choices:
            near = self.synonyms.get(text) or nearest(text, choices)
            listed = ", ".join(map(repr, choices))
            hint = f"did you mean {near}?" if near else ""
            raise CommandLineError(f"{self.label}: invalid choice: {value!r} (choose from {listed})", hint)
        return value


class Entry:
    """One word in the names of commands, for help and completion: `below` are the words that may follow it, `arguments` those
    of the command that it ends; None when they are not needed."""

    def __init__(
        self, word: str, summary: str, below: Sequence[Entry] = (), arguments: Sequence[Argument] | None = None
    ) -> None:
        self.word = word
        self.summary = summary
        self.below = below
        self.arguments = arguments


def nonempty(text: str) -> str:
    """Any text but the empty one, which an unset variable of a script leaves."""
    if not text:
        raise ValueError("must not be empty")
    return text


def before_dashes(words: Sequence[str]) -> Sequence[str]:
    """The words before `--`."""
    return words[: words.index("--")] if "--" in words else words


def flag_of(word: str) -> str:
    """The flag in a word that may be an option."""
    return word.partition("=")[0] if word.startswith("--") else word[:2]


def parse(words: Sequence[str], arguments: Sequence[Argument], trailing: str = "") -> dict[str, Any]:
    """The value of each of `arguments` by its name. The argument called `trailing`, a list, takes all words after `--`.

    Raises CommandLineError.
    """
    head = before_dashes(words)
    tail = words[len(head) + 1 :]
    values = {one.dest: list(one.default) if isinstance(one.default, list) else one.default for one in arguments}
    texts = _parse_options(head, [one for one in arguments if not one.is_positional], values)
    by_place = [one for one in arguments if one.is_positional and not values.get(one.substitute)]
    _parse_texts(texts if trailing else [*texts, *tail], by_place, values)
    if trailing:
        values[trailing] = [*values[trailing], *tail]
    return values


def _parse_options(words: Sequence[str], options: Sequence[Argument], values: dict[str, Any]) -> list[str]:
    """Store the values of the options among `words`; the other words."""
    flags = {flag: option for option in options for flag in option.spellings}
    _check_flags(words, {*HELP, *flags})
    texts: list[str] = []
    given: set[str] = set()
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        flag = flag_of(word)
        option = flags.get(flag)
        if option is None:
            texts.append(word)
            continue
        given.add(option.dest)
        attached = word[len(flag) :]
        if option.takes_value:
            value = option.convert(_text(option, attached, rest))
            values[option.dest] = [*(values[option.dest] or []), value] if option.action == "append" else value
        else:
            values[option.dest] = values[option.dest] + 1 if option.action == "count" else flag in option.flags
            if attached:  # `-vo json`
                rest.append(f"-{attached}")
                if flag.startswith("--") or flag_of(rest[-1]) not in flags:
                    raise CommandLineError(f"{option.label}: takes no value, not {attached.removeprefix('=')!r}")
    _check_required(one for one in options if one.required and one.dest not in given)
    return texts


def _check_flags(words: Sequence[str], flags: set[str]) -> None:
    """Raise for the first unknown option, with a suggestion."""
    for word in words:
        flag = flag_of(word)
        long = "-" + word.partition("=")[0]  # of `-name`, as other programs spell it
        if word.startswith("-") and long in flags:
            raise CommandLineError(f"unknown option {long[1:]}", f"did you mean {long}?")
        if flag not in flags and _is_option(word):
            near = nearest(flag, flags)
            hint = f"did you mean {near}? --help lists all" if near else "--help lists all"
            raise CommandLineError(f"unknown option {flag}", hint)


def _is_option(word: str) -> bool:
    """Whether a word that is no known flag looks like one: not `-`, a negative number, or a text with spaces."""
    return word.startswith("-") and word != "-" and " " not in word and not word[1].isdigit()


def _text(option: Argument, attached: str, rest: list[str]) -> str:
    """The text of an option's value: `attached` to the flag, or the next word, which is taken from `rest`."""
    if attached:
        return attached.removeprefix("=")
    if not rest or _is_option(rest[-1]):
        raise CommandLineError(f"{option.label}: expected one argument")
    return rest.pop()


def _parse_texts(texts: Sequence[str], arguments: Sequence[Argument], values: dict[str, Any]) -> None:
    """Store the values of positional arguments, in the order of their declaration."""
    rest = list(texts)
    for argument in arguments:
        if argument.nargs == "*":
            values[argument.dest] = [argument.convert(text) for text in rest]
            rest = []
        elif rest:
            values[argument.dest] = argument.convert(rest.pop(0))
    _check_required(one for one in arguments[len(texts) :] if one.required)
    if rest:
        hint = "put text with spaces between quotes, and -- before text that begins with -"
        raise CommandLineError(f"unexpected argument {rest[0]!r}", hint)


def _check_required(missing: Iterable[Argument]) -> None:
    if labels := [one.label for one in missing]:
        raise CommandLineError(f"the following arguments are required: {', '.join(labels)}")
