"""`aghd config show` and `aghd config check`."""

from typing import Any

from aghbus.daemon.commands import OK, OUTPUT, USAGE
from aghbus.daemon.commands.configuration import OPTIONS, answer, load, load_checked, refuse, unit_aware
from aghbus.daemon.config.display import problems_json, show_json, show_text
from aghbus.daemon.config.layers import ConfigError
from aghbus.host.command_line import Command
from aghbus.host.files import as_owner


def run_show(values: dict[str, Any]) -> int:
    """Print every key with its value and origin."""
    try:
        env, folder = unit_aware(values)
        with as_owner(folder):
            loaded = load(values, env=env)
    except ConfigError as error:
        return refuse(error.problems)
    return answer(show_json(loaded) if values["output"] == "json" else show_text(loaded))


def run_check(values: dict[str, Any]) -> int:
    """Print every problem; exit code 2 when there is one."""
    try:
        env, folder = unit_aware(values)
        with as_owner(folder):
            notes = load_checked(values, env).notes
    except ConfigError as error:
        if values["output"] == "human":
            return refuse(error.problems)
        answer(problems_json(error.problems))
        return USAGE
    if values["output"] == "json":
        return answer(problems_json((), notes))
    for note in notes:
        answer(f"note: {note}")
    answer("configuration is good")
    return OK


COMMANDS = {
    "config show": Command(
        run_show,
        description="Print every key, its value and where it comes from.",
        examples=["aghd config show", "aghd config show --name ops -o json"],
        arguments=[OUTPUT, *OPTIONS],
    ),
    "config check": Command(
        run_check,
        description="Print every problem of the configuration and of the files that it names. Exits 2 if there is one.",
        examples=["aghd config check", "aghd config check --config deploy/aghbus.toml -o json"],
        arguments=[OUTPUT, *OPTIONS],
    ),
}
