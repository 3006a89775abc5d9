"""`aghctl completion`."""

from __future__ import annotations

from aghbus.cli.app.arguments import Command, Positional
from aghbus.cli.app.errors import YES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aghbus.cli.context import Context


def run(context: Context, values: dict[str, Any]) -> int:
    """Print the script, or its text as JSON."""
    from aghbus.cli.app.completion import SCRIPTS

    shell = values["shell"]
    context.output.answer({"shell": shell, "script": SCRIPTS[shell]()}, lambda it: str(it["script"]).rstrip("\n"))
    return YES


COMMANDS = {
    "completion": Command(
        run,
        description="Print a completion script, made from the commands and options that this version has.",
        examples=[
            "source <(aghctl completion bash)",
            "source <(aghctl completion zsh)",
            "aghctl completion fish > ~/.config/fish/completions/aghctl.fish",
        ],
        positionals=[Positional("SHELL", "which shell", choices=("bash", "zsh", "fish"))],
    )
}
