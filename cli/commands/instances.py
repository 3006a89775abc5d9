"""`aghctl instances list` and `aghctl instances rm`."""

from __future__ import annotations

import os

from aghbus.cli.app import completers
from aghbus.cli.app.errors import YES, AnswerIsNo, Missing
from aghbus.cli.app.text import ago, safe, size, table
from aghbus.cli.context import Context
from aghbus.client.errors import Unexpected
from aghbus.client.locate import instance_places, instances, locations
from aghbus.host.command_line import Argument, Command
from aghbus.host.locations import Locations
from aghbus.protocol.base.annotations import Any


def run_list(context: Context, values: dict[str, Any]) -> int:
    """List the instances that run or have state on disk."""
    found = {"instances": [_instance(places, up) for places, up in instances(context.env)]}
    context.output.rows(found, "instances", _human, "no instance runs, and none has state on disk")
    return YES


def run_rm(context: Context, values: dict[str, Any]) -> int:
    """Remove the state of one instance and of the processes beside it; raises Missing, and AnswerIsNo when one of them runs, or has
    a key that is to be kept."""
    import shutil

    from aghbus.client.work.folders import lock_of
    from aghbus.host.file_lock import FileLock

    places = instance_places({**context.options, "name": values["instance"]}, context.env)
    clients_dir = locations(places.name, context.env).clients_dir
    running = "stop its daemon first", "stop aghctl serve, bridge and a2a of this instance first"
    locks = FileLock(f"{places.store_path}.lock"), lock_of(clients_dir)
    found = [
        one
        for one in zip((places.state_dir, clients_dir), locks, running, strict=True)
        if os.path.isdir(one[0])  # noqa: PTH112 - pathlib is slow to load
    ]
    if not found:
        raise Missing(f"there is no instance called {places.name}", "`aghctl instances list` shows all")
    try:
        for _, lock, hint in found:
            if not lock.try_lock(shared=False):
                raise AnswerIsNo(f"the instance {places.name} is running", hint)
        keys = [key for folder, _, _ in found for key in _keys_in(folder)]
        if keys and not values["with_key"]:
            hint = "without it nobody can use its handle, or sign its Agent Cards: copy the file, or add --with-key"
            raise AnswerIsNo(f"the instance {places.name} has a private key: {', '.join(keys)}", hint)
        for folder, _, _ in found:
            shutil.rmtree(folder)
    except OSError as error:
        raise Unexpected(f"{error.filename or places.state_dir} cannot be removed: {error.strerror}") from None
    finally:
        for lock in locks:
            lock.release()
    removed = {"removed": places.name, "state_dir": places.state_dir, "clients_dir": clients_dir}
    context.output.answer(removed, lambda _: "\n".join(f"removed {safe(folder)}" for folder, _, _ in found))
    return YES


def _keys_in(folder: str) -> list[str]:
    """The files with keys in a folder and those directly in it."""
    from pathlib import Path

    found = (path for pattern in ("*.pem", "*/*.pem") for path in Path(folder).glob(pattern))
    return sorted(str(path.relative_to(folder)) for path in found)


def _instance(places: Locations, up: bool) -> dict[str, Any]:
    """One instance, as the JSON output shows it; `bytes` and `changed_ms` are of the store's files, null without one."""
    files = [found for suffix in ("", "-wal") if (found := _stat(places.store_path + suffix))]
    return {
        "name": places.name,
        "running": up,
        "state_dir": places.state_dir,
        "socket": places.socket_path,
        "bytes": sum(one.st_size for one in files) if files else None,
        "changed_ms": max(int(one.st_mtime * 1000) for one in files) if files else None,
    }


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - pathlib is slow to load
    except OSError:
        return None


def _human(answer: dict[str, Any]) -> str:
    rows = [
        (
            one["name"],
            "running" if one["running"] else "stopped",
            None if one["bytes"] is None else size(one["bytes"]),
            None if one["changed_ms"] is None else ago(one["changed_ms"]),
            one["state_dir"],
        )
        for one in answer["instances"]
    ]
    return table(["INSTANCE", "STATE", "STORE", "CHANGED", "FOLDER"], rows)


COMMANDS = {
    "instances list": Command(
        run_list,
        description=(
            "List the instances of this user, and those of the system that this user may use: those that run, and those that\n"
            "have state on disk. Needs no daemon."
        ),
        examples=["aghctl instances list", "aghctl instances list -o json"],
    ),
    "instances rm": Command(
        run_rm,
        description=(
            "Remove the state of a stopped instance: its store with every message and work, its token, and what this user's\n"
            "`aghctl serve`, `bridge` and `a2a` keep for it. Its configuration file stays, and so does a store that store.path\n"
            "puts elsewhere. Needs no daemon."
        ),
        examples=["aghctl instances rm patch-worker"],
        arguments=[
            Argument("instance", completer=completers.instances, help="name of the instance"),
            Argument("--with-key", action="store_true", help="also if it has a private key, which is removed too"),
        ],
    ),
}
