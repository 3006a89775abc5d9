"""From flags, environment and files to `Settings`: the files that are read, and the rules between keys."""

from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Any, Final

import msgspec

from aghbus.daemon.config.layers import (
    COMMON_FILE,
    FLAG,
    INSTANCE_FILE,
    ConfigError,
    Found,
    Problem,
    build,
    from_environment,
    from_flags,
    from_toml,
    merge,
    override,
    read_toml,
    read_values,
    unknown_variables,
)
from aghbus.daemon.config.settings import KEYS, Settings
from aghbus.daemon.config.value_types import hide_userinfo
from aghbus.host.files import is_exposed
from aghbus.host.locations import LocationError, Locations, check_socket_path, default_name, is_legal_name, locate

CONFIG_VARIABLE: Final = "AGHD_CONFIG"
"""The environment variable for `--config`."""

_ENVIRONMENT: Final = "environment"
_NAME: Final = tuple(key for key in KEYS if key.name == "name")
_SECRETS: Final = tuple(key.name for key in KEYS if key.spec.secret)


class Host(msgspec.Struct, frozen=True):
    """The machine's part: user id, home folder, host name, current folder, bytes of a socket path with its NUL."""

    uid: int
    home: str
    hostname: str
    folder: str
    socket_path_limit: int


class Loaded(msgspec.Struct, frozen=True):
    """Checked settings and the locations that follow from them.

    `origins` says for every key where its value came from; `files` are the configuration files that were read; `notes` are
    warnings for the operator.
    """

    settings: Settings
    locations: Locations
    origins: Mapping[str, str]
    files: tuple[str, ...]
    notes: tuple[str, ...]


Inspect = Callable[[Loaded, Set[str]], tuple[list[Problem], list[str]]]
"""Checks the files that settings name, given the keys that have problems already. Returns problems and notes."""


def load_settings(
    flags: Mapping[str, Any], env: Mapping[str, str], host: Host, *, inspect: Inspect | None = None
) -> Loaded:
    """Layer, check and complete the settings. Raises `ConfigError` with every problem at once, those of `inspect` too.

    `flags` maps key names (and `config`) to values of the command line, None for absent ones. The layers, strongest first:
    flags, AGHD_* variables, NATS_URL and NATS_CONTEXT, the instance's file, the common file, defaults. A file named by
    `--config` or AGHD_CONFIG replaces both files.
    """
    given = merge(
        [from_flags(KEYS, flags, host.folder, host.home), from_environment(KEYS, env, host.folder, host.home)]
    )
    files = _Files(host)
    if named := flags.get("config") or env.get(CONFIG_VARIABLE):
        files.read(_expand(named, host), COMMON_FILE, required=True)
    else:
        files.read_usual(given, env)
    found = merge([given, *files.layers])
    problems = files.problems + _overridden_names(files.layers, found) + _settle_alternatives(found)
    values, broken = read_values(KEYS, found)
    problems += broken
    origins = {key.name: found[key.name].origin if key.name in found else "default" for key in KEYS}
    problems += _complete(values, origins, found, host)
    settings = build(Settings, values)
    try:
        locations = _locations(settings, env, host)
    except LocationError as error:
        raise ConfigError(
            [*problems, Problem(error.key, origins.get(error.key, _ENVIRONMENT), error.rule, error.hint)]
        ) from None
    notes = [*files.notes, *_exposed(found), *unknown_variables(KEYS, env, (CONFIG_VARIABLE,))]
    if inspect is not None:
        more, remarks = inspect(Loaded(settings, locations, origins, (), ()), {problem.key for problem in problems})
        problems += more
        notes += remarks
    if problems:
        raise ConfigError(problems)
    return Loaded(settings, locations, origins, tuple(files.paths), tuple(notes))


class _Files:
    """The configuration files of one load: their values, problems and notes."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.layers: list[dict[str, Found]] = []
        self.paths: list[str] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def read_usual(self, given: Mapping[str, Found], env: Mapping[str, str]) -> None:
        """The common file, then the file of the instance that `given` or the common file names."""
        usual = default_name(self._host.hostname)
        try:
            self.read(locate(usual, env, uid=self._host.uid, home=self._host.home).config_file, COMMON_FILE)
        except LocationError:
            return  # the locations are computed again after all is read, and the error reported then
        named = merge([given, *self.layers]).get("name")
        name = named.raw if named else usual
        if not isinstance(name, str) or not is_legal_name(name):
            return  # reported with the other values, and never made a path
        if path := locate(name, env, uid=self._host.uid, home=self._host.home).instance_config_file:
            layer = self.read(path, INSTANCE_FILE)
            if "name" in layer and layer.pop("name").raw != name:
                rule = f"must be {name!r} or absent in the file of the instance {name!r}"
                self.problems.append(Problem("name", f"file {path}", rule))

    def read(self, path: str, rank: int, *, required: bool = False) -> dict[str, Found]:
        """One file: its values become a layer, which is also returned."""
        document, problems = read_toml(path, required=required)
        layer, unknown = from_toml(KEYS, document, path, rank, self._host.home)
        self.problems += problems + unknown
        self.layers.append(layer)
        if document:
            self.paths.append(path)
        if any(secret in layer for secret in _SECRETS) and is_exposed(Path(path).stat()):
            self.notes.append(f"{path} contains a secret and others may read it; chmod 600 would keep it")
        return layer


def _overridden_names(layers: Iterable[Mapping[str, Found]], found: Mapping[str, Found]) -> list[Problem]:
    """The problems of names in files that a stronger layer overrides: nearly every command line names the instance, and a bad name
    in the file would stay unseen."""
    given = (layer for layer in layers if "name" in layer and layer["name"] is not found.get("name"))
    return [problem for layer in given for problem in read_values(_NAME, layer)[1]]


def _settle_alternatives(found: dict[str, Found]) -> list[Problem]:
    problems = []
    for one, other in (("nats.token", "nats.token_file"), ("nats.password", "nats.password_file")):
        problems += override(found, one, other, conflict=f"must not be given together with {one}")
    # A server named on the command line must not get the credentials of a context from the environment.
    override(found, "nats.servers", "nats.context", conflict="")
    return problems


def _complete(values: dict[str, Any], origins: dict[str, str], found: Mapping[str, Found], host: Host) -> list[Problem]:
    """Fill in values that follow from other keys or from the host, also in place of invalid ones, so that all is checked."""
    if "name" not in found:
        origins["name"] = "default: the host's name"
    if "peer_id" not in found:
        origins["peer_id"] = "default: the name"
    values.setdefault("name", default_name(host.hostname))
    values.setdefault("peer_id", values["name"])
    if values.get("broker.embedded") != "never" or {"nats.servers", "nats.context"} & found.keys():
        return []
    rule = "must be auto as long as no NATS server is named"
    return [Problem("broker.embedded", origins["broker.embedded"], rule, "name one with --nats or NATS_URL")]


def _locations(settings: Settings, env: Mapping[str, str], host: Host) -> Locations:
    locations = locate(settings.name, env, uid=host.uid, home=host.home).with_overrides(
        store_path=settings.store.path,
        socket_path=settings.api.socket,
        broker_dir=settings.broker.directory,
        api_token_file=settings.api.token_file,
    )
    check_socket_path(locations.socket_path, host.socket_path_limit)
    return locations


def _exposed(found: Mapping[str, Found]) -> list[str]:
    servers = found.get("nats.servers")
    if servers is None or servers.rank != FLAG or all(hide_userinfo(url) == url for url in servers.raw):
        return []
    return ["the credentials in --nats can be seen in the process list; NATS_URL or --nats-creds keep them out of it"]


def _expand(path: str, host: Host) -> str:
    return str(Path(host.folder, host.home + path[1:] if path.startswith("~/") else path))
