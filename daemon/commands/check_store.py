"""`aghd check-store`."""

from pathlib import Path
from typing import Any

from aghbus.daemon.check_store import accept_loss, check_store, rebuild_indexes
from aghbus.daemon.commands import FAILED, OK, OUTPUT
from aghbus.daemon.commands.configuration import OPTIONS, answer, fail, load, refuse, unit_aware
from aghbus.daemon.config.layers import ConfigError
from aghbus.host.command_line import Argument, Command, CommandLineError
from aghbus.host.files import as_owner
from aghbus.protocol.base.text import escape
from aghbus.store.errors import StoreError


def run(values: dict[str, Any]) -> int:
    """Print what the store is like; 1 when a check fails."""
    chosen = [name for name in ("quick", "accept_loss", "rebuild_indexes") if values[name]]
    if len(chosen) > 1:
        first, second, *_ = (f"--{name.replace('_', '-')}" for name in chosen)
        raise CommandLineError(f"{first} and {second} exclude each other")
    try:
        env, folder = unit_aware(values)
        path = Path(load(values, env=env).locations.store_path)
        with as_owner(folder):
            return _check(path, values)
    except ConfigError as error:
        return refuse(error.problems)
    except StoreError as error:
        return fail(str(error), error.hint)


def _check(path: Path, values: dict[str, Any]) -> int:
    if values["accept_loss"]:
        return answer(escape(accept_loss(path)))
    if values["rebuild_indexes"]:
        return answer(rebuild_indexes(path))
    report = check_store(path, quick=values["quick"])
    answer(report.as_json() if values["output"] == "json" else report.as_text())
    return OK if report.ok else FAILED


COMMANDS = {
    "check-store": Command(
        run,
        description=(
            "Check the store without starting the daemon and without changing anything. Reads every page, index entry and\n"
            "envelope. Exits 1 if a check fails."
        ),
        examples=[
            "aghd check-store --name ops",
            "aghd check-store --name ops --quick -o json",
            "aghd check-store --name ops --accept-loss",
        ],
        arguments=[
            Argument("--quick", action="store_true", help="check only what the next start would check"),
            Argument(
                "--accept-loss",
                action="store_true",
                help="end the warning about a loss that was found; the daemon must be stopped",
            ),
            Argument(
                "--rebuild-indexes",
                action="store_true",
                help="make the indexes of the stored envelopes again; the daemon must be stopped",
            ),
            OUTPUT,
            *OPTIONS,
        ],
    )
}
