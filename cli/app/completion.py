"""Completion scripts for shells, generated from the registry and the declarations of the commands."""

from __future__ import annotations

from aghbus.cli.app.arguments import GLOBAL_OPTIONS
from aghbus.cli.app.registry import COMMANDS, GROUPS, branches, load, longest, members, ways

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aghbus.cli.app.arguments import Option

_BASH = """\
# completion of aghctl for bash
_aghctl() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} path= word skip= list=
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        if [[ $skip ]]; then skip=; continue; fi
        case "$word" in {values}) skip=1; continue;; esac
        case "${{path:+$path }}$word" in {paths}) path="${{path:+$path }}$word";; esac
    done
    case "$path $prev" in
{choices}
    esac
    if [[ $skip ]]; then
        COMPREPLY=($(compgen -W "$list" -- "$cur"))
        [[ $list ]] || COMPREPLY=($(compgen -f -- "$cur"))
        return
    fi
    case "$path" in
{words}
    esac
    COMPREPLY=($(compgen -W "$list" -- "$cur"))
    [[ ${{COMPREPLY[*]}} || $cur == -* ]] || COMPREPLY=($(compgen -f -- "$cur"))
}}
complete -F _aghctl aghctl
"""
_ZSH = (
    "# completion of aghctl for zsh\nautoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
)
_FISH = """\
# completion of aghctl for fish
function __aghctl_path
    set -l path
    set -l skip
    for word in (commandline -opc)[2..-1]
        if test -n "$skip"
            set skip
            continue
        end
        switch $word
            case {values}
                set skip 1
                continue
        end
        switch (string join ' ' $path $word)
            case {paths}
                set -a path $word
        end
    end
    string join ' ' $path
end
"""


def bash() -> str:
    """The script for bash."""
    paths = [*GROUPS, *COMMANDS, *branches()]
    return _BASH.format(
        values="|".join(_value_flags()),
        paths="|".join(f"'{path}'" for path in paths),
        choices="\n".join(f'        *" {flag}") list="{" ".join(words)}";;' for flag, words in _choices(GLOBAL_OPTIONS))
        + "".join(
            f'\n        "{path} {flag}") list="{" ".join(words)}";;'
            for path in [*COMMANDS, *branches()]
            for flag, words in _choices(load(longest(path.split())).options)
        ),
        words="\n".join(f"        '{path}') list=\"{' '.join(_words(path))}\";;" for path in ["", *paths]),
    )


def zsh() -> str:
    """The script for zsh, which runs bash's through its own bridge."""
    return _ZSH + bash()


def fish() -> str:
    """The script for fish."""
    paths = [*GROUPS, *COMMANDS, *branches()]
    quoted = " ".join(map(_quoted, paths))
    lines = [_FISH.format(values=" ".join(_value_flags()), paths=quoted), "complete -c aghctl -f"]
    for path in ["", *paths]:
        where = f"complete -c aghctl -n {_quoted(f'test (__aghctl_path) = {chr(34)}{path}{chr(34)}')}"
        if not path:
            firsts = dict.fromkeys(name.split()[0] for name in COMMANDS)
            lines += [f"{where} -a {_quoted(name)} -d {_quoted(_summary(name))}" for name in firsts]
        elif path in GROUPS:
            lines += [f"{where} -a {name} -d {_quoted(_summary(f'{path} {name}'))}" for name in members(path)]
        else:
            command = load(longest(path.split()))
            lines += [f"{where} -a {name} -d {_quoted(_summary(f'{path} {name}'))}" for name in _ways(path)]
            lines += [where + _fish_option(option) for option in command.options]
            for positional in () if path in branches() else command.positionals:
                lines.append(
                    f"{where} -a {_quoted(' '.join(positional.choices))}" if positional.choices else f"{where} -F"
                )
    lines += ["complete -c aghctl" + _fish_option(option) for option in GLOBAL_OPTIONS]
    return "\n".join(lines) + "\n"


SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}
"""Shell → what makes its script."""


def _words(path: str) -> list[str]:
    """What may come after `path`: second words, options, fixed values of positionals."""
    flags = [option.flags[-1] for option in GLOBAL_OPTIONS]
    if not path:
        return [*dict.fromkeys(name.split()[0] for name in COMMANDS), *flags, "--help"]
    if path in GROUPS:
        return members(path)
    command = load(longest(path.split()))
    fixed = [choice for positional in command.positionals for choice in positional.choices]
    return [*(_ways(path) or fixed), *(option.flags[-1] for option in command.options), *flags, "--help"]


def _ways(path: str) -> list[str]:
    """What may follow a branch; after the command that it belongs to, that is a fixed value of a positional."""
    return ways(path) if path in branches() else []


def _value_flags() -> list[str]:
    """Every option of any command that takes a value. One spelled alike elsewhere as a switch is left out."""
    options = [*GLOBAL_OPTIONS, *(option for path in COMMANDS for option in load(path).options)]
    switches = {flag for option in options if not option.metavar for flag in option.flags}
    return list(dict.fromkeys(flag for option in options for flag in option.flags if flag not in switches))


def _choices(options: Iterable[Option]) -> list[tuple[str, Sequence[str]]]:
    return [(flag, option.choices) for option in options if option.choices for flag in option.flags]


def _summary(name: str) -> str:
    return COMMANDS[name][1] if name in COMMANDS else GROUPS[name]


def _fish_option(option: Option) -> str:
    text = "".join(f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}" for flag in option.flags)
    if option.choices:
        text += f" -x -a {_quoted(' '.join(option.choices))}"
    elif option.metavar:
        text += " -r"
    return f"{text} -d {_quoted(option.help)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
