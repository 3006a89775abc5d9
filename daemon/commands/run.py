"""`aghd run`."""

import logging
import sys
from collections.abc import Callable
from typing import Any, TextIO

from aghbus.daemon.base.logs import configure, event
from aghbus.daemon.commands import FAILED
from aghbus.daemon.commands.configuration import OPTIONS, fail, load, load_checked, refuse
from aghbus.daemon.config.folders import prepare_folders
from aghbus.daemon.config.layers import ConfigError
from aghbus.daemon.config.loader import Loaded
from aghbus.daemon.config.settings import Settings
from aghbus.host.command_line import Argument, Command
from aghbus.host.locations import LocationError


def run(values: dict[str, Any]) -> int:
    """Run the daemon until a signal ends it."""
    try:
        loaded = load_checked(values)
    except ConfigError as error:
        return refuse(error.problems)
    configure(loaded.settings.log.level, loaded.settings.log.format)
    log = logging.getLogger("aghbus.main")
    for note in loaded.notes:
        event(log, logging.WARNING, "configuration", note=note)
    try:
        prepare_folders(loaded.locations)
        return _run_daemon(loaded, None if values["quiet"] else sys.stdout, lambda: load(values).settings)
    except LocationError as error:
        return fail(f"{error.key}: {error.rule}", error.hint)
    except KeyboardInterrupt:  # before the daemon took over the signals
        return FAILED
    except Exception as error:
        # An error meant for operators has a hint or problems. Any other is a bug and gets a traceback.
        if hasattr(error, "hint") or hasattr(error, "problems"):
            return fail(str(error), str(getattr(error, "hint", "")))
        log.exception("the daemon stopped on an unexpected error")
        return fail(str(error) or type(error).__name__, "the log has the traceback")


def _run_daemon(loaded: Loaded, banner: TextIO | None, reload: Callable[[], Settings]) -> int:
    from aghbus.daemon.base import runtime  # help and completion do not need these two
    from aghbus.daemon.process import run_daemon

    return runtime.run(run_daemon(loaded.settings, loaded.locations, banner=banner, reload=reload))


COMMANDS = {
    "run": Command(
        run,
        description=(
            "Run the daemon in the foreground: a peer named after this host, on its own broker unless --nats or\n"
            "NATS_CONTEXT names one. Every configuration key except secrets has an option."
        ),
        examples=[
            "aghd run",
            "aghd run --name patch-worker --capability test.run --capability code.patch",
            "aghd run --name ops --nats nats://127.0.0.1:4222 --nats-creds ~/ops.creds",
            "NATS_CONTEXT=staging aghd run --name ops -v --log-format json",
        ],
        arguments=[Argument("-q", "--quiet", action="store_true", help="print no banner"), *OPTIONS],
    )
}
