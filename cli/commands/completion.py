"""`aghctl completion`."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.context import Context
from aghbus.protocol.base.annotations import Any
from aghbus.store.host.command_line import Argument, Command

_ZSH_HEAD = "(( $+functions[compdef] )) || { autoload -U compinit && compinit }\n"
"""A zsh that has not set up completion yet lacks `compdef`, which the script calls."""


def run(context: Context, values: dict[str, Any]) -> int:
    """Print the script, or its text as JSON."""
    from argcomplete.shell_integration import shellcode

    shell = values["shell"]
    script = shellcode(["aghctl", "aghd"], shell=shell)
    found = {"shell": shell, "script": _ZSH_HEAD + script if shell == "zsh" else script}
    context.output.answer(found, lambda it: str(it["script"]).rstrip("\n"))
    return YES


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
