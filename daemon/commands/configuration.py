"""Shared by the commands of aghd that read the configuration: options, loading of settings, and printing."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aghbus.daemon.base.logs import verbosity_level
from aghbus.daemon.commands import FAILED, OK, USAGE
from aghbus.daemon.config.display import key_options, problems_text
from aghbus.daemon.config.folders import this_host
from aghbus.daemon.config.layers import ConfigError, Problem
from aghbus.daemon.config.loader import Inspect, Loaded, load_settings
from aghbus.host.command_line import Argument
from aghbus.host.instances import places_of, unit_environment
from aghbus.host.locations import LocationError, is_legal_name
from aghbus.host.stdio import write, write_error
from aghbus.protocol.base.text import escape

OPTIONS = (
    Argument("-v", "--verbose", action="count", default=0, help="log level info; -vv: debug"),
    *key_options(),
)
"""`--verbose`, `--config`, and an option for every key of the configuration that may have one."""


def load(values: dict[str, Any], inspect: Inspect | None = None, env: Mapping[str, str] = os.environ) -> Loaded:
    """The settings of a command line, the environment and the files. Raises ConfigError with every problem."""
    options = dict(values)
    if options["log.level"] is None:
        options["log.level"] = verbosity_level(options["verbose"])
    return load_settings(options, env, this_host(env), inspect=inspect)


def load_checked(values: dict[str, Any], env: Mapping[str, str] = os.environ) -> Loaded:
    """The same; the files that the settings name are read and checked too."""
    from aghbus.daemon.commands.named_files import check_named_files  # imports much that `show` does not need

    return load(values, lambda loaded, faulty: check_named_files(loaded, faulty, env), env)


def unit_aware(values: dict[str, Any]) -> tuple[Mapping[str, str], str | None]:
    """For a command beside the daemon: its environment, which is that of the unit for an instance of the system, and the folder
    whose owner such a unit runs as. Raises ConfigError for a name that the user has, too."""
    env = os.environ
    name = values["name"] or env.get("AGHD_NAME")
    if not name or not is_legal_name(name):
        return env, None  # a bad name is reported with the other values
    host, socket = this_host(env), values["api.socket"] or env.get("AGHD_API_SOCKET")
    try:
        places = places_of(name, socket, env, uid=host.uid, home=host.home)
    except LocationError as error:
        raise ConfigError([Problem(error.key, "command line", error.rule, error.hint)]) from None
    if not places.system:
        return env, None
    others = {key: value for key, value in env.items() if not key.startswith(("AGHD_", "NATS_"))}
    return {
        **others,
        **unit_environment(name),
        **_environment_file(f"{places.config_dir}/{name}.env"),
    }, places.state_dir


def _environment_file(path: str) -> dict[str, str]:
    """The variables in an EnvironmentFile of systemd; none without the file, or if this user may not read it."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found = (line.strip().partition("=") for line in lines if not line.lstrip().startswith(("#", ";")))
    return {key.strip(): _unquoted(value.strip()) for key, equals, value in found if equals}


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def answer(text: str) -> int:
    """Print an answer; exit code 0."""
    write(text + "\n")
    return OK


def fail(message: str, hint: str) -> int:
    """Report a failure while running; exit code 1."""
    write_error(f"aghd: {escape(message)}\n" + (f"    hint: {escape(hint)}\n" if hint else ""))
    return FAILED


def refuse(problems: Iterable[Problem]) -> int:
    """Report every problem of the configuration; exit code 2."""
    rows = list(problems)
    count = f"{len(rows)} problem{'s' if len(rows) > 1 else ''}"
    write_error(f"aghd: the configuration has {count}\n{problems_text(rows)}\n")
    return USAGE
