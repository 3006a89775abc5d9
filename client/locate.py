"""Finding a daemon: its endpoint and its paths, from options and environment; its name on the bus, from its configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping

from aghbus.client.errors import ConfigurationError, Unreachable, UsageError
from aghbus.client.http import Endpoint
from aghbus.host.instances import may_use, name_of_socket, places_of, stored_instances, system_instances
from aghbus.host.locations import (
    FALLBACK_NAME,
    LocationError,
    Locations,
    default_name,
    is_legal_name,
    locate,
    private_folder_problem,
    token_file_problem,
)
from aghbus.protocol.base.annotations import Any

PROBE_SECONDS = 1.0
"""How long a socket may take to accept before it counts as dead: accepting is the kernel's work."""


def find(options: Mapping[str, Any], env: Mapping[str, str]) -> Endpoint:
    """The endpoint that options and environment name, else the daemon called like this host, else the only one running.

    Raises UsageError when several run and none is named, or when a name is illegal; Unreachable when there is none.
    """
    if options["api"]:
        return _tcp(options, env)
    if path := _named_socket(options, env):
        return Endpoint(path=path)
    named = options["name"] or env.get("AGHD_NAME")
    places = instance_places(options, env)
    if places.socket_dir_private:
        _check_folder(places.socket_dir)
    if _listens(places.socket_path):
        return Endpoint(path=places.socket_path)
    others = running(env)
    names = ", ".join(other.name for other in others)
    if named:
        raise _not_running(places, names)
    if len(others) == 1:
        return Endpoint(path=others[0].socket_path)
    if others:
        raise UsageError("several daemons are running", f"name one of them (--name, from_env, AGHD_NAME): {names}")
    raise Unreachable("no daemon is running", "start one: aghd run")


def locations(name: str, env: Mapping[str, str]) -> Locations:
    """Every path of the user's own instance called `name`. Raises UsageError for an illegal name."""
    try:
        return locate(name, env, uid=os.getuid(), home=_home(env))
    except LocationError as error:
        raise UsageError(f"{error.key}: {error.rule}", error.hint) from None


def instance_places(options: Mapping[str, Any], env: Mapping[str, str]) -> Locations:
    """Every path of the instance that options and environment name, the user's own or one of the system. Raises UsageError for an
    illegal name, or one that both have."""
    socket = _named_socket(options, env)
    try:
        return places_of(chosen_name(options, env), socket, env, uid=os.getuid(), home=_home(env))
    except LocationError as error:
        raise UsageError(f"{error.key}: {error.rule}", error.hint) from None


def chosen_name(options: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """The name that options and environment give, also by a socket, else that of this host."""
    if options["name"]:
        return str(options["name"])
    by_option, by_variable = (
        name_of_socket(path, locations(FALLBACK_NAME, env).socket_dir) if path else ""
        for path in (options["socket"], env.get("AGHD_API_SOCKET"))
    )
    return by_option or env.get("AGHD_NAME") or by_variable or default_name(os.uname().nodename)


def instances(env: Mapping[str, str]) -> list[tuple[Locations, bool]]:
    """The instances that this user may use, and whether each runs: the user's own that run or have state, then the system's."""
    anyone = locations(FALLBACK_NAME, env)
    stored = stored_instances(anyone)
    own = [locations(name, env) for name in sorted({*stored, *_sockets(anyone.socket_dir)})]
    folders = {places.state_dir for places in own}
    found = [*own, *(places for places in system_instances() if places.state_dir not in folders)]
    with_state = [(places, _listens(places.socket_path)) for places in found]
    return [(places, up) for places, up in with_state if up or places.system or places.name in stored]


def running(env: Mapping[str, str]) -> list[Locations]:
    """Those of them that run."""
    return [places for places, up in instances(env) if up]


def _named_socket(options: Mapping[str, Any], env: Mapping[str, str]) -> str | None:
    return options["socket"] or (None if options["name"] else env.get("AGHD_API_SOCKET"))


def _home(env: Mapping[str, str]) -> str:
    return env.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - pathlib is slow to load


def _not_running(places: Locations, running_now: str) -> Unreachable:
    """Nobody listens where the daemon of a named instance would, or we may not find out."""
    if places.system and not may_use(places) and os.path.isdir(places.socket_dir):  # noqa: PTH112 - pathlib is slow to load
        return Unreachable(
            f"this user may not use the daemon {places.name} of the system",
            f"run as root, or be a member of the group aghd-{places.name}",
        )
    start = f"systemctl start aghd@{places.name}" if places.system else f"aghd run --name {places.name}"
    return Unreachable(
        f"no daemon called {places.name} is running (nothing listens at {places.socket_path})",
        f"running now: {running_now}" if running_now and not places.system else f"start it: {start}",
    )


def configured_peer_id(places: Locations, env: Mapping[str, str]) -> str:
    """The `peer_id` that the daemon of an instance reads from environment and files; its name where they give none.

    An option of the daemon's command line is not known here. Raises ConfigurationError for a file that cannot be read.
    """
    if not places.system and env.get("AGHD_PEER_ID"):
        return env["AGHD_PEER_ID"]
    if not places.system and env.get("AGHD_CONFIG"):
        return _peer_id_in(os.path.expanduser(env["AGHD_CONFIG"])) or places.name  # noqa: PTH111 - pathlib is slow to load
    for path in (places.instance_config_file, places.config_file):
        if path is not None and (found := _peer_id_in(path)) is not None:
            return found
    return places.name


def _peer_id_in(path: str) -> str | None:
    import tomllib

    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is slow to load
            document = tomllib.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"is not valid TOML: {error}"
        raise ConfigurationError(
            f"the configuration file {path} cannot be read: {reason}", "it has the peer id: see `aghd config check`"
        ) from None
    found = document.get("peer_id")
    return found if isinstance(found, str) and found else None


def _sockets(folder: str) -> list[str]:
    """Names of the instances that have sockets in `folder`."""
    try:
        entries = os.listdir(folder)  # noqa: PTH208 - pathlib is slow to load
    except OSError:
        return []
    names = (entry.removesuffix(".sock") for entry in entries if entry.endswith(".sock"))
    return [name for name in names if is_legal_name(name)]


def _listens(path: str) -> bool:
    try:
        Endpoint(path=path).connect(PROBE_SECONDS).close()
    except Unreachable:
        return False
    return True


def _check_folder(folder: str) -> None:
    """Refuse a folder that other users could have made: they could pretend to be the daemon."""
    try:
        status = os.lstat(folder)
    except OSError:
        return
    if problem := private_folder_problem(status.st_mode, status.st_uid, os.getuid()):
        raise Unreachable(f"the sockets' folder {folder} {problem}", "set XDG_RUNTIME_DIR to a folder of yours")


def _tcp(options: Mapping[str, Any], env: Mapping[str, str]) -> Endpoint:
    rest = str(options["api"]).removeprefix("http://").rstrip("/")
    host, colon, port = rest.rpartition(":")
    if "/" in rest or not colon or not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise UsageError("--api: must be a URL such as http://127.0.0.1:4637")
    host = host.removeprefix("[").removesuffix("]")
    from aghbus.protocol.base.addresses import is_loopback  # only for TCP: ipaddress is slow to load

    if not is_loopback(host):
        hint = "the daemon listens on the loopback interface only, and the token must not leave this host"
        raise UsageError(f"--api: {host} is not this host's loopback interface", hint)
    file = options["token_file"] or env.get("AGHD_API_TOKEN_FILE")
    file = file or instance_places(options, env).api_token_file
    try:
        with open(file, encoding="ascii") as stream:  # noqa: PTH123 - pathlib is slow to load
            mode = os.fstat(stream.fileno()).st_mode
            token = stream.read(4096).strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(
            f"--token-file: {file} cannot be read: {reason}", "the daemon writes it with api.tcp"
        ) from None
    if problem := token_file_problem(file, mode, env):
        raise UsageError(
            f"--token-file: {file} {problem}", f"run chmod 600 {file}, and make a new token if it was read"
        )
    if not token.isprintable():
        raise UsageError(f"--token-file: {file} contains more than one line")
    return Endpoint(host=host, port=int(port), token=token)
