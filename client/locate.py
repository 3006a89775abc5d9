"""Finding a daemon: its endpoint and its paths, from options and environment; its name on the bus, from its configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping

from aghbus.client.errors import ConfigurationError, Unreachable, UsageError
from aghbus.client.http import Endpoint
from aghbus.host.locations import (
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
    path = options["socket"] or (None if options["name"] else env.get("AGHD_API_SOCKET"))
    if path:
        return Endpoint(path=path)
    named = options["name"] or env.get("AGHD_NAME")
    places = locations(named or default_name(os.uname().nodename), env)
    _check_folder(places.socket_dir)
    if _listens(places.socket_path):
        return Endpoint(path=places.socket_path)
    others = running(places.socket_dir)
    if named:
        hint = f"running now: {', '.join(others)}" if others else f"start it: aghd run --name {named}"
        raise Unreachable(f"no daemon called {named} is running (nothing listens at {places.socket_path})", hint)
    if len(others) == 1:
        return Endpoint(path=f"{places.socket_dir}/{others[0]}.sock")
    if others:
        hint = f"name one of them (--name, from_env, AGHD_NAME): {', '.join(others)}"
        raise UsageError("several daemons are running", hint)
    raise Unreachable("no daemon is running", "start one: aghd run")


def locations(name: str, env: Mapping[str, str]) -> Locations:
    """Every path of the instance called `name`. Raises UsageError for an illegal name."""
    try:
        return locate(name, env, uid=os.getuid(), home=env.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - pathlib is slow to load
    except LocationError as error:
        raise UsageError(f"{error.key}: {error.rule}", error.hint) from None


def chosen_name(options: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """The name that options and environment give, else that of this host."""
    return str(options["name"] or env.get("AGHD_NAME") or default_name(os.uname().nodename))


def configured_peer_id(name: str, env: Mapping[str, str]) -> str:
    """The `peer_id` that the daemon of the instance called `name` reads from environment and files; `name` where they give none.

    An option of the daemon's command line is not known here. Raises ConfigurationError for a file that cannot be read.
    """
    if env.get("AGHD_PEER_ID"):
        return env["AGHD_PEER_ID"]
    if env.get("AGHD_CONFIG"):
        return _peer_id_in(os.path.expanduser(env["AGHD_CONFIG"])) or name  # noqa: PTH111 - pathlib is slow to load
    places = locations(name, env)
    for path in (places.instance_config_file, places.config_file):
        if path is not None and (found := _peer_id_in(path)) is not None:
            return found
    return name


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


def running(folder: str) -> list[str]:
    """Names of the instances whose sockets in `folder` accept connections, sorted."""
    try:
        entries = os.listdir(folder)  # noqa: PTH208 - pathlib is slow to load
    except OSError:
        return []
    names = (entry.removesuffix(".sock") for entry in entries if entry.endswith(".sock"))
    return sorted(name for name in names if is_legal_name(name) and _listens(f"{folder}/{name}.sock"))


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
    file = file or locations(chosen_name(options, env), env).api_token_file
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
