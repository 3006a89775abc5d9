"""What the commands of aghd that read the configuration share: their options, and the way from them to settings."""

import os
from typing import Any

from aghbus.daemon.base.logs import verbosity_level
from aghbus.daemon.config.display import key_options
from aghbus.daemon.config.folders import this_host
from aghbus.daemon.config.loader import Inspect, Loaded, load_settings
from aghbus.store.host.command_line import Argument

OPTIONS = (
    Argument("-v", "--verbose", action="count", default=0, help="log level info; -vv: debug"),
    *key_options(),
)
"""`--verbose`, `--config`, and an option for every key of the configuration that may have one."""


def load(values: dict[str, Any], inspect: Inspect | None = None) -> Loaded:
    """The settings of a command line, the environment and the files. Raises ConfigError with every problem."""
    options = dict(values)
    if options["log.level"] is None:
        options["log.level"] = verbosity_level(options["verbose"])
    return load_settings(options, os.environ, this_host(os.environ), inspect=inspect)


def load_checked(values: dict[str, Any]) -> Loaded:
    """The same; the files that the settings name are read and checked too."""
    from aghbus.daemon.commands.named_files import check_named_files  # imports much that `show` does not need

    return load(values, lambda loaded, faulty: check_named_files(loaded, faulty, os.environ))
