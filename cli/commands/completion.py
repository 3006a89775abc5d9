"""`aghctl completion`."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.context import Context
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

_ZSH = """\
#compdef aghctl aghd
_aghbus() {
    local -a found
    local line="${(j: :)words[1,CURRENT-1]} $PREFIX"
    found=("${(@f)$(_ARGCOMPLETE=1 _ARGCOMPLETE_SHELL=zsh _ARGCOMPLETE_IFS=$'\\n' _ARGCOMPLETE_SUPPRESS_SPACE=1 \\
        COMP_LINE="$line" COMP_POINT=$#line ${(Q)~words[1]} 8>&1 9>/dev/null >/dev/null 2>&1 </dev/null)}")
    [[ -n "${found[*]}" ]] || return 1
    if [[ "$found[1]" == */ ]]; then
        _describe "${words[1]:t}" found -o nosort -S ''
    else
        _describe "${words[1]:t}" found -o nosort
    fi
}
if [[ "$funcstack[1]" == _aghctl ]]; then  # a file in fpath, loaded at the first TAB
    _aghbus "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _aghbus aghctl aghd
fi
"""
"""Runs where a person sources it, and as the file `_aghctl` in a folder of `fpath`."""


def run(context: Context, values: dict[str, Any]) -> int:
    """Print the script, or its text as JSON."""
    shell = values["shell"]
    found = {"shell": shell, "script": _ZSH if shell == "zsh" else _of_argcomplete(shell)}
    context.output.answer(found, lambda it: str(it["script"]).rstrip("\n"))
    return YES


def _of_argcomplete(shell: str) -> str:
    from argcomplete.shell_integration import shellcode

    return str(shellcode(["aghctl", "aghd"], shell=shell))


COMMANDS = {
    "completion": Command(
        run,
        description=(
            "Print a script that completes the command lines of aghctl and aghd. The script asks the programs themselves, so\n"
            "that it never needs to be printed again for a later version."
        ),
        examples=[
            "source <(aghctl completion bash)",
            "source <(aghctl completion zsh)",
            "aghctl completion fish | source",
        ],
        arguments=[Argument("shell", choices=("bash", "zsh", "fish"), help="which shell")],
    )
}
