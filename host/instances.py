"""The instances on this machine: those of the user, and those of the system, each of which is a unit aghd@NAME of systemd.

Root and the members of a unit's group use the system's instances like their own (docs/operations.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from aghbus.host.locations import LocationError, Locations, is_legal_name, locate

_STATE = "/var/lib"
_CONFIG = "/etc"
_SOCKETS = "/run/aghbus"


def unit_environment(name: str) -> dict[str, str]:
    """Variables that deploy/systemd/aghd@.service sets for the instance called `name`, and that say where its files are."""
    return {
        "XDG_STATE_HOME": _STATE,
        "XDG_CONFIG_HOME": _CONFIG,
        "AGHD_BROKER_EMBEDDED": "never",
        "AGHD_API_SOCKET": f"{_SOCKETS}/{name}/api.sock",
    }


def system_places(name: str) -> Locations:
    """The paths of the system's instance called `name`, whether there is one or not. Raises LocationError for an illegal name."""
    env = unit_environment(name)
    places = locate(name, env, uid=0, home="").with_overrides(socket_path=env["AGHD_API_SOCKET"])
    places.system = True
    return places


def places_of(name: str, socket: str | None, env: Mapping[str, str], *, uid: int, home: str) -> Locations:
    """The paths of the instance called `name`: of the user's own, or else of the system's. With both, `socket` says which.

    Raises LocationError for an illegal name, and if the user may use both and names no socket.
    """
    own, system = locate(name, env, uid=uid, home=home), system_places(name)
    if own.state_dir == system.state_dir or not _exists(system):
        return own
    if socket:
        return system if socket == system.socket_path else own
    if not _exists(own):
        return system
    if not may_use(system):
        return own
    raise LocationError(
        "name",
        f"{name} is an instance of yours ({own.state_dir}), and one of the system ({system.state_dir})",
        f"--socket, of aghd --api-socket, says which: {own.socket_path} or {system.socket_path}",
    )


def name_of_socket(path: str, own_folder: str) -> str:
    """The name of the instance whose socket is at `path` by default; "" if there is none. `own_folder` has the user's sockets."""
    folder, _, file = path.rpartition("/")
    if file == "api.sock" and folder.rpartition("/")[0] == _SOCKETS:
        name = folder.rpartition("/")[2]
    else:
        name = file.removesuffix(".sock") if folder == own_folder else ""
    return name if is_legal_name(name) else ""


def stored_instances(places: Locations) -> list[str]:
    """Names of the instances whose state is in the same folder as that of `places`, sorted."""
    return _names(places.state_dir.rpartition("/")[0])


def system_instances() -> list[Locations]:
    """The system's instances that have state or a socket, and that this user may use, sorted by name."""
    names = {*_names(f"{_STATE}/aghbus/instances"), *_names(_SOCKETS)}
    found = (system_places(name) for name in sorted(names))
    return [places for places in found if may_use(places)]


def may_use(places: Locations) -> bool:
    """Whether this user may read the state of an instance, or enter the folder of its socket."""
    return os.access(places.state_dir, os.R_OK | os.X_OK) or (
        os.path.isdir(places.socket_dir) and os.access(places.socket_dir, os.X_OK)  # noqa: PTH112 - pathlib is slow to load
    )


def _exists(places: Locations) -> bool:
    paths = (places.state_dir, places.socket_path, places.instance_config_file)
    return any(path is not None and os.path.exists(path) for path in paths)  # noqa: PTH110 - pathlib is slow to load


def _names(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - pathlib is slow to load
    except OSError:
        return []
    return sorted(name for name in names if is_legal_name(name))
