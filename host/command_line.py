"""The command line of both programs.

A program is a table of commands. Each command declares its arguments in its own module, and only the module of the
command that was named is imported. Global options may stand before, between and after the words of the command's name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from aghbus.host.arguments import HELP, Entry, before_dashes, flag_of, parse
from aghbus.host.arguments import Argument as Argument
from aghbus.host.arguments import CommandLineError as CommandLineError
from aghbus.host.arguments import nonempty as nonempty
from aghbus.protocol.base.annotations import Any, NoReturn
from aghbus.protocol.base.spelling import nearest

_MAX_WORDS = 3  # in the name of a command


class HelpRequested(Exception):
    """The command line asks for a help text, which is the exception's own text."""


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
    `habits` maps words that name a command in other programs to the command that does it here, for a suggestion.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str,
        package: str,
        commands: Mapping[str, tuple[str, str]],
        groups: Mapping[str, str],
        habits: Mapping[str, str] | None = None,
        global_arguments: Sequence[Argument] = (),
        examples: Sequence[str] = (),
        epilog: str = "",
    ) -> None:
        self.name = name
        self.description = description
        self.package = package
        self.commands = commands
        self.groups = groups
        self.habits = habits or {}
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
        if any(word in HELP for word in before_dashes(rest)):
            raise HelpRequested(self.help_text(self.longest(path) or " ".join(path[:1])))
        name = self.longest(path)
        if not name:
            self._refuse(path, rest)
        command = self.load(name)
        try:
            arguments = (*command.arguments, *self.global_arguments)
            return command, parse([*path[len(name.split()) :], *rest], arguments, command.trailing)
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
        if name and name not in self.commands and name not in self.groups:
            raise self._unknown(name.split())
        from aghbus.host.help_text import command_help, group_help  # argparse is slow to load

        prog = f"{self.name} {name}".strip()
        if name in self.commands:
            command = self.load(name)
            return command_help(prog, command.description, command.examples, command.arguments, self.global_arguments)
        entries = self._entries(name, "")
        if name:
            return group_help(prog, f"{name}: {self.groups[name]}.", "", (), entries, self.global_arguments)
        return group_help(prog, self.description, self.epilog, self.examples, entries, self.global_arguments)

    def complete(self) -> None:
        """When the shell asks for completions, answer it and end the process."""
        if "_ARGCOMPLETE" not in os.environ:
            return
        from aghbus.host.help_text import complete

        path, _ = self._split(os.environ.get("COMP_LINE", "").split()[1:])
        complete(self.name, self._entries("", self.longest(path)), self.global_arguments)

    def _split(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Up to three words that may name a command, taken from between global options; and everything else, in order."""
        flags = {flag for argument in self.global_arguments for flag in argument.flags}
        path: list[str] = []
        options: list[str] = []
        rest = list(words)
        while rest and len(path) < _MAX_WORDS:
            if rest[0] == "-" or not rest[0].startswith("-"):
                path.append(rest.pop(0))
            elif flag_of(rest[0]) in flags:
                count = 2 if rest[0] in flags else 1  # `--name ops`, or `--name=ops` and `-ojson`
                options += rest[:count]
                del rest[:count]
            else:
                break
        return path, [*options, *rest]

    def _entries(self, prefix: str, name: str) -> list[Entry]:
        """The words below `prefix`; the command called `name` has its arguments, the others have none."""
        entries = []
        for word, summary in self.below(prefix).items():
            full = f"{prefix} {word}".strip()
            if full == name:
                entries.append(Entry(word, summary, arguments=self.load(name).arguments))
            elif full in self.groups or name.startswith(full + " "):
                entries.append(Entry(word, summary, below=self._entries(full, name)))
            else:
                entries.append(Entry(word, summary))
        return entries

    def _summary(self, name: str) -> str:
        if name in self.groups:
            return f"{self.groups[name]}: {', '.join(self.below(name))}"
        return self.commands[name][1] if name in self.commands else ""

    def _refuse(self, path: Sequence[str], rest: Sequence[str]) -> NoReturn:
        """Say what is wrong with words that name no command."""
        if len(path) > 1 or (path and path[0] not in self.groups):
            raise self._unknown(path)
        parse(before_dashes(rest), (*self.global_arguments, Argument("--version", action="store_true", help="")))
        if path:
            raise CommandLineError(f"{path[0]}: which command?", f"one of: {', '.join(self.below(path[0]))}")
        raise CommandLineError("which command?", f"{self.name} --help lists all")

    def _unknown(self, path: Sequence[str]) -> CommandLineError:
        prefix = f"{path[0]} " if path[0] in self.groups else ""
        word = path[1] if prefix else path[0]
        meant = self._meant(prefix, word)
        hint = f"did you mean {meant}?" if meant else f"{self.name} {prefix}--help lists all"
        return CommandLineError(f"unknown command {prefix}{word}", hint)

    def _meant(self, prefix: str, word: str) -> str:
        """The commands that an unknown word probably means; empty when there is none."""
        if prefix + word in self.habits:
            return self.habits[prefix + word]
        if not prefix and (ending := [name for name in self.commands if name.endswith(f" {word}")]):
            return ", ".join(ending)
        near = nearest(word, self.below(prefix.strip()))
        return f"{prefix}{near}" if near else ""
