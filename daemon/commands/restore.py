"""`aghd restore`."""

import os
from pathlib import Path
from typing import Any

import msgspec

from aghbus.daemon.base import clock
from aghbus.daemon.commands import FAILED, OK, OUTPUT
from aghbus.daemon.commands.configuration import OPTIONS, answer, fail, load, refuse, unit_aware
from aghbus.daemon.commands.restore_store import RestoreReport, restore, verify
from aghbus.daemon.config.layers import ConfigError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.text import escape
from aghbus.store.engine.backup.epoch import spell
from aghbus.store.errors import StoreError


def run(values: dict[str, Any]) -> int:
    """Restore the store of the instance from a backup; 1 when it is refused."""
    clock.arm(os.environ)
    if values["verify"]:
        return _verify(Path(values["backup"]), as_json=values["output"] == "json")
    try:
        env, _ = unit_aware(values)
        places = load(values, env=env).locations
    except ConfigError as error:
        return refuse(error.problems)
    now_ms, source = clock.Clock().millis(), Path(values["backup"])
    try:
        report = restore(
            source, Path(places.store_path), Path(places.state_dir), now_ms=now_ms, replace=values["replace"]
        )
    except StoreError as error:
        return fail(str(error), error.hint)
    return answer(msgspec.json.encode(report).decode() if values["output"] == "json" else _human(report))


def _verify(source: Path, *, as_json: bool) -> int:
    try:
        report = verify(source)
    except OSError as error:
        return fail(str(error), "TMPDIR names the folder for temporary files")
    verdict = "can" if report.ok else "cannot"
    answer(report.as_json() if as_json else f"{escape(report.store)} {verdict} be restored\n{report.as_text()}")
    return OK if report.ok else FAILED


def _human(report: RestoreReport) -> str:
    restored = report.restored
    of = "the store that was moved" if restored is None else f"a backup of {spell(restored.backup_ms)}"
    lines = [f"restored {report.store} from {of}"]
    lines += [f"keys: {', '.join(report.keys)}"] if report.keys else []
    lines += [f"what it replaced is in {report.replaced}"] if report.replaced else []
    if restored is not None:
        until = spell(1000 * restored.held_through)
        lines.append(f"openings that were sent before {until} are held for you: `aghctl status` counts them")
    return "\n".join(map(escape, lines))


COMMANDS = {
    "restore": Command(
        run,
        description=(
            "Restore the store of a stopped instance from a file or folder that `aghctl backup` made. The copy is checked as\n"
            "`aghd check-store` does. The daemon holds openings that it may have processed before (docs/backup.md).\n"
            "With --verify the backup is restored into a folder for temporary files only, opened and checked."
        ),
        examples=[
            "aghd restore --name ops /var/backups/ops/",
            "aghd restore --name ops ops.db --replace",
            "aghd restore --verify /var/backups/ops/",
        ],
        arguments=[
            Argument("backup", metavar="FILE|DIR", help="the backup; the newest in a folder of several"),
            Argument(
                "--replace",
                action="store_true",
                help="replace an existing store, which is moved to a folder beside it",
            ),
            Argument("--verify", action="store_true", help="a drill: change nothing, also while the daemon runs"),
            OUTPUT,
            *OPTIONS,
        ],
    )
}
