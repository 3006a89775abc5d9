"""The command line of both programs, by argparse and argcomplete.

A program is a table of commands. Each command declares its arguments in its own module, and only the module of the
command that was named is imported. Global options may stand before, between and after the words of the command's name;
options and positional arguments may be mixed. Options are never abbreviated.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence

from aghbus.protocol.base.annotations import Any, NoReturn
from aghbus.protocol.base.spelling import nearest

_HELP = ("-h", "--help")
_MAX_WORDS = 3  # in the name of a command


class CommandLineError(Exception):
    """The command line breaks a rule. `message` names the argument and the rule, `hint` (may be empty) the next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class HelpRequested(Exception):
    """The command line asks for a help text, which is the exception's own text."""


class Argument:
    """One call of `ArgumentParser.add_argument`, as a value that commands can share.

    `flags` and `options` are those of `add_argument`, except that: the metavar of a positional argument is its name in
    capitals; `append` starts from an empty list; `type` raises ValueError with the rule that the text breaks; a required
    positional argument must not be empty; `help` needs no doubled `%`. `group` is the title in the help text,
    `completer` one of argcomplete.
    """

    def __init__(
        self, *flags: str, group: str = "", completer: Callable[..., Any] | None = None, **options: Any
    ) -> None:
        self.flags = flags
        self.group = group
        self.completer = completer
        options["help"] = options["help"].replace("%", "%%")
        if self.is_positional:
            if "choices" not in options:
                options.setdefault("metavar", flags[0].upper())
            if "nargs" not in options:
                options.setdefault("type", nonempty)
        if options.get("action") == "append":
            options.setdefault("default", [])
            options["help"] += " (repeat for several)"
        if "type" in options:
            options["type"] = _reporting(options["type"])
        self.options = options

    @property
    def is_positional(self) -> bool:
        """Whether it stands by its place and not behind a flag."""
        return not self.flags[0].startswith("-")

    @property
    def dest(self) -> str:
        """The name of its value."""
        name = next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])
        return str(self.options.get("dest") or name.lstrip("-").replace("-", "_"))

    @property
    def default(self) -> object:
        """The value when it is not given."""
        return self.options.get("default", False if self.options.get("action") == "store_true" else None)

    @property
    def metavar(self) -> str:
        """The placeholder of its value in a help text."""
        return str(self.options.get("metavar") or self.dest.upper())

    @property
    def nargs(self) -> str:
        """`?`, `*`, or empty for one value."""
        return str(self.options.get("nargs", ""))

    def add_to(self, parser: argparse._ActionsContainer, **options: Any) -> argparse.Action:
        """Declare it to argparse, with `options` in place of its own."""
        action = parser.add_argument(*self.flags, **{**self.options, **options})
        if self.completer is not None:
            action.completer = self.completer  # type: ignore[attr-defined]  # where argcomplete looks for it
        return action


class Command:
    """One command: its arguments, examples that run as printed, and the function that carries it out.

    `run` returns the exit code; a program defines what it is called with. `trailing` names the argument, a list, that takes
    every word after `--`.
    """

    def __init__(
        self,
        run: Callable[..., int],
        *,
        description: str,
        examples: Sequence[str],
        arguments: Sequence[Argument] = (),
        trailing: str = "",
    ) -> None:
        self.run = run
        self.description = description
        self.examples = examples
        self.arguments = arguments
        self.trailing = trailing


class Program:
    """One program.

    `commands` maps the full name of each command, of one to three words, to its module in `package` and one line of help.
    `groups` maps first words that are not complete commands to one line of help. The module holds a dict `COMMANDS` by full name.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str,
        package: str,
        commands: Mapping[str, tuple[str, str]],
        groups: Mapping[str, str],
        global_arguments: Sequence[Argument] = (),
        examples: Sequence[str] = (),
        epilog: str = "",
    ) -> None:
        self.name = name
        self.description = description
        self.package = package
        self.commands = commands
        self.groups = groups
        self.global_arguments = global_arguments
        self.examples = examples
        self.epilog = epilog

    def parse(self, words: Sequence[str]) -> tuple[Command, dict[str, Any]]:
        """The command that `words` name, and the value of each of its arguments and of the global ones.

        Raises CommandLineError or HelpRequested. A converter's own exceptions pass through.
        """
        if words[:1] == ["help"]:
            raise HelpRequested(self.help_text(" ".join(words[1:])))
        if words[:1] == ["--version"]:
            words = ["version", *words[1:]]
        path, rest = self._split(words)
        if any(word in _HELP for word in _before_dashes(rest)):
            raise HelpRequested(self.help_text(self.longest(path) or " ".join(path[:1])))
        name = self.longest(path)
        if not name:
            self._refuse(path, rest)
        command = self.load(name)
        try:
            return command, self._parse(name, command, [*path[len(name.split()) :], *rest])
        except CommandLineError as error:
            error.hint = error.hint or f"see {self.name} {name} --help"
            raise

    def load(self, name: str) -> Command:
        """The declaration of the command called `name`, from its module."""
        module = __import__(f"{self.package}.{self.commands[name][0]}", fromlist=["COMMANDS"])
        command: Command = module.COMMANDS[name]
        return command

    def longest(self, words: Sequence[str]) -> str:
        """The longest name of a command that `words` begin with; empty when there is none."""
        names = (" ".join(words[:count]) for count in range(_MAX_WORDS, 0, -1))
        return next((name for name in names if name in self.commands), "")

    def below(self, prefix: str) -> dict[str, str]:
        """The words that may follow `prefix` in a command's name, each with one line of help."""
        start = f"{prefix} " if prefix else ""
        words = dict.fromkeys(name[len(start) :].split()[0] for name in self.commands if name.startswith(start))
        return {word: self._summary(start + word) for word in words}

    def help_text(self, name: str) -> str:
        """The help of a command, of a group, or ("") of the whole program. Raises CommandLineError for an unknown name."""
        if name in self.commands:
            return self._help_of(name, self.load(name))
        if name and name not in self.groups:
            raise self._unknown(name.split())
        prog = f"{self.name} {name}".strip()
        parser = _Parser(
            prog=prog,
            usage=f"{prog} COMMAND [options]",
            description=f"{name}: {self.groups[name]}." if name else self.description,
            epilog="" if name else "\n\n".join(filter(None, (self.epilog, _examples(self.examples)))),
        )
        self._add_commands(parser, name, "")
        self._add_globals(parser)
        return parser.format_help()

    def _help_of(self, name: str, command: Command) -> str:
        prog = f"{self.name} {name}"
        usage, examples = _usage(prog, command.arguments), _examples(command.examples)
        parser = _Parser(prog=prog, usage=usage, description=command.description, epilog=examples)
        _add_arguments(parser, command.arguments)
        self._add_globals(parser)
        return parser.format_help()

    def complete(self) -> None:
        """When the shell asks for completions, answer it and end the process."""
        if "_ARGCOMPLETE" not in os.environ:
            return
        import argcomplete

        path, _ = self._split(os.environ.get("COMP_LINE", "").split()[1:])
        parser = _Parser(prog=self.name, usage=self.name)
        self._add_commands(parser, "", self.longest(path))
        self._add_globals(parser)
        argcomplete.autocomplete(parser, always_complete_options=False)

    def _split(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Up to three words that may name a command, taken from between global options; and everything else, in order."""
        flags = {flag for argument in self.global_arguments for flag in argument.flags}
        path: list[str] = []
        options: list[str] = []
        rest = list(words)
        while rest and len(path) < _MAX_WORDS:
            if rest[0] == "-" or not rest[0].startswith("-"):
                path.append(rest.pop(0))
            elif _flag_of(rest[0]) in flags:
                count = 2 if rest[0] in flags else 1  # `--name ops`, or `--name=ops` and `-ojson`
                options += rest[:count]
                del rest[:count]
            else:
                break
        return path, [*options, *rest]

    def _parse(self, name: str, command: Command, words: Sequence[str]) -> dict[str, Any]:
        """The values of `words`. Options first, then positional arguments: argparse is wrong about some that are mixed."""
        prog = f"{self.name} {name}"
        optional = _Parser(prog=prog, usage=prog)
        actions = [
            one.add_to(optional) for one in (*command.arguments, *self.global_arguments) if not one.is_positional
        ]
        head = _before_dashes(words)
        _check_options(head, {*_HELP, *(flag for action in actions for flag in action.option_strings)})
        found, texts = optional.parse_known_args(head)
        tail = words[len(head) + 1 :]
        positional = _Parser(prog=prog, usage=prog, prefix_chars="\0", add_help=False)  # no word of argv begins so
        _add_arguments(positional, [one for one in command.arguments if one.is_positional])
        found, surplus = positional.parse_known_args(texts if command.trailing else [*texts, *tail], found)
        if surplus:
            hint = "put text with spaces between quotes, and -- before text that begins with -"
            raise CommandLineError(f"unexpected argument {surplus[0]!r}", hint)
        values = vars(found)
        if command.trailing:
            values[command.trailing] = [*values[command.trailing], *tail]
        return values

    def _add_globals(self, parser: argparse.ArgumentParser, **options: Any) -> None:
        if self.global_arguments:
            group = parser.add_argument_group("global options, before or after the command")
            for argument in self.global_arguments:
                argument.add_to(group, **options)

    def _add_commands(self, parser: argparse.ArgumentParser, prefix: str, name: str) -> None:
        """List the commands below `prefix`; the one called `name`, and what leads to it, also gets its arguments."""
        level = parser.add_subparsers(title="commands", metavar="COMMAND", prog=parser.prog)
        for word, summary in self.below(prefix).items():
            full = f"{prefix} {word}".strip()
            child = level.add_parser(word, help=summary.replace("%", "%%"), usage=parser.prog)
            if full == name:
                _add_arguments(child, self.load(name).arguments)
                self._add_globals(child, default=argparse.SUPPRESS)  # keeps the values given before the command
            elif full in self.groups or name.startswith(full + " "):
                self._add_commands(child, full, name)

    def _summary(self, name: str) -> str:
        if name in self.groups:
            return f"{self.groups[name]}: {', '.join(self.below(name))}"
        return self.commands[name][1] if name in self.commands else ""

    def _refuse(self, path: Sequence[str], rest: Sequence[str]) -> NoReturn:
        """Say what is wrong with words that name no command."""
        if len(path) > 1 or (path and path[0] not in self.groups):
            raise self._unknown(path)
        parser = _Parser(prog=self.name, usage=self.name)
        self._add_globals(parser)
        _check_options(rest, {"--version", *(flag for one in self.global_arguments for flag in one.flags)})
        parser.parse_known_args(rest)
        if path:
            raise CommandLineError(f"{path[0]}: which command?", f"one of: {', '.join(self.below(path[0]))}")
        raise CommandLineError("which command?", f"{self.name} --help lists all")

    def _unknown(self, path: Sequence[str]) -> CommandLineError:
        prefix = f"{path[0]} " if path[0] in self.groups else ""
        word = path[1] if prefix else path[0]
        near = nearest(word, self.below(prefix.strip()))
        hint = f"did you mean {prefix}{near}?" if near else f"{self.name} {prefix}--help lists all"
        return CommandLineError(f"unknown command {prefix}{word}", hint)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are exceptions."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_formatter, **options)

    def error(self, message: str) -> NoReturn:
        raise CommandLineError(message.removeprefix("argument "))


def nonempty(text: str) -> str:
    """Any text but the empty one, which an unset variable of a script leaves."""
    if not text:
        raise ValueError("must not be empty")
    return text


def _reporting(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """`convert`, with the message of its ValueError in argparse's own error."""

    def converted(text: str) -> Any:
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return converted


def _before_dashes(words: Sequence[str]) -> Sequence[str]:
    return words[: words.index("--")] if "--" in words else words


def _flag_of(word: str) -> str:
    return word.partition("=")[0] if word.startswith("--") else word[:2]


def _check_options(words: Sequence[str], flags: set[str]) -> None:
    """Raise for the first unknown option, with a suggestion: argparse would complain about a missing argument first."""
    for word in words:
        flag = _flag_of(word)
        if flag.startswith("-") and flag != "-" and flag not in flags and " " not in word and not flag[1].isdigit():
            near = nearest(flag, flags)
            hint = f"did you mean {near}? --help lists all" if near else "--help lists all"
            raise CommandLineError(f"unknown option {flag}", hint)


def _add_arguments(parser: argparse.ArgumentParser, arguments: Sequence[Argument]) -> None:
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for title in dict.fromkeys(argument.group for argument in arguments if argument.group):
        groups[title] = parser.add_argument_group(title)
    for argument in arguments:
        argument.add_to(groups[argument.group])


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Help in the width of the terminal; asked of the system, since argparse loads shutil for it at every argument."""
    try:
        columns = os.get_terminal_size(1).columns
    except (OSError, ValueError):
        columns = 0
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=min(columns or 120, 120) - 2)


def _usage(prog: str, arguments: Sequence[Argument]) -> str:
    """The command line in one line: positional arguments, required options, `[options]`, and what follows `--`."""
    required = [f"{one.flags[-1]} {one.metavar}" for one in arguments if one.options.get("required")]
    by_place = [one for one in arguments if one.is_positional]
    words = [f"[{one.metavar}]" if one.nargs == "?" else one.metavar for one in by_place if one.nargs != "*"]
    trailing = [f"[-- {one.metavar} ...]" for one in by_place if one.nargs == "*"]
    options = ["[options]"] if len(required) + len(by_place) < len(arguments) else []
    return " ".join([prog, *words, *required, *options, *trailing])


def _examples(examples: Sequence[str]) -> str:
    return "\n".join(["examples:", *(f"  {example}" for example in examples)]) if examples else ""
