"""The paths of an instance's files, for `aghd`, which creates them, and `aghctl`, which finds them.

Everything here is computed from arguments (environment mapping, user id, home folder, host name), nothing is read or
made. The folders follow the XDG Base Directory Specification. `aghctl` imports this module on every start, so it
imports nothing that a bare interpreter has not loaded already: no `re`, `typing`, `dataclasses` or `pathlib`, and not
our own tree of errors; paths are strings.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping

MAX_NAME_BYTES = 128
"""Longest instance name in bytes: that of a peer id, because the peer id defaults to the name."""

SOCKET_PATH_LIMIT_LINUX = 108
"""Bytes of `sun_path`, closing NUL included, in Linux (unix(7))."""

SOCKET_PATH_LIMIT_ELSEWHERE = 104
"""Bytes of `sun_path`, closing NUL included, in the BSDs and macOS; the smallest of the common systems."""

FALLBACK_NAME = "peer"
"""Name of an instance whose host has no name with a single legal character."""

_ALNUM = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_NAME_CHARACTERS = _ALNUM | frozenset("._-")

_NAMES_WITHOUT_INSTANCE_FILE = frozenset({"aghbus", "capabilities"})
"""Names whose NAME.toml would be the common configuration file or the capability catalog."""


class LocationError(Exception):
    """A place that cannot be used. `key` names the setting at fault, `rule` what it breaks, `hint` the way out."""

    def __init__(self, key: str, rule: str, hint: str) -> None:
        super().__init__(f"{key}: {rule} ({hint})")
        self.key = key
        self.rule = rule
        self.hint = hint


class Locations:
    """Every path of one instance, absolute, as strings. Treat as a value: `with_overrides` makes a changed copy.

    `socket_dir_private` says that the folder of the socket is ours alone to make and check (`private_folder_problem`).
    It is false when the operator named the socket, whose folder may then belong to somebody else.
    `system` is true for an instance of the system, which is a unit of systemd (instances.py).
    `clients_dir` has the state of processes beside the daemon (client/work/folders.py).
    `instance_config_file` is None for the two names whose file would be one of the shared files beside it.
    """

    def __init__(self, name: str, *, state_root: str, socket_dir: str, config_dir: str) -> None:
        self.name = name
        self.state_dir = f"{state_root}/instances/{name}"
        self.store_path = f"{self.state_dir}/store.db"
        self.api_token_file = f"{self.state_dir}/api.token"
        self.clients_dir = f"{state_root}/clients/{name}"
        self.broker_dir = f"{state_root}/broker"
        self.socket_dir = socket_dir
        self.socket_dir_private = True
        self.system = False
        self.socket_path = f"{socket_dir}/{name}.sock"
        self.config_dir = config_dir
        self.config_file = f"{config_dir}/aghbus.toml"
        self.instance_config_file = None if name in _NAMES_WITHOUT_INSTANCE_FILE else f"{config_dir}/{name}.toml"
        self.catalog_candidates = (
            f"{config_dir}/capabilities.toml",
            f"{config_dir}/capabilities.json",
            f"{config_dir}/capabilities",
        )

    def with_overrides(
        self,
        *,
        store_path: str | None = None,
        socket_path: str | None = None,
        broker_dir: str | None = None,
        api_token_file: str | None = None,
    ) -> Locations:
        """A copy with the paths that the operator named; None leaves a path as it is."""
        copy = Locations.__new__(Locations)
        copy.__dict__.update(self.__dict__)
        copy.store_path = store_path or self.store_path
        copy.broker_dir = broker_dir or self.broker_dir
        copy.api_token_file = api_token_file or self.api_token_file
        if socket_path is not None and socket_path != self.socket_path:
            copy.socket_path = socket_path
            copy.socket_dir = socket_path.rpartition("/")[0] or "/"
            copy.socket_dir_private = False
        return copy


def is_legal_name(name: str) -> bool:
    """Whether `name` matches `^[a-z0-9][a-z0-9._-]{0,127}$`, the grammar of a peer id (specification, section 1)."""
    return 0 < len(name) <= MAX_NAME_BYTES and name[0] in _ALNUM and _NAME_CHARACTERS.issuperset(name)


def default_name(hostname: str) -> str:
    """The legal name nearest to a host's name: lower case, other characters as `-`, cut at 128 bytes.

    The only place where a name is shaped; a name that a person gave is taken as it is or refused.
    """
    shaped = "".join(c if c in _NAME_CHARACTERS else "-" for c in hostname.lower())
    return shaped.strip("._-")[:MAX_NAME_BYTES] or FALLBACK_NAME


def locate(name: str, env: Mapping[str, str], *, uid: int, home: str) -> Locations:
    """The places of the instance called `name` for the user `uid`. Raises `LocationError` before a bad name is a path.

    Folders: state below `$XDG_STATE_HOME` or `~/.local/state`, configuration below `$XDG_CONFIG_HOME` or `~/.config`,
    sockets below `$XDG_RUNTIME_DIR`, else in `/tmp/aghbus-UID`. A relative XDG value is ignored, as XDG says.
    """
    if not is_legal_name(name):
        raise LocationError(
            "name",
            "must be 1 to 128 characters of a-z, 0-9, '.', '_' and '-', the first a letter or digit",
            f"{default_name(name)!r} would do",
        )
    runtime = _absolute(env.get("XDG_RUNTIME_DIR", ""))
    return Locations(
        name,
        state_root=f"{_base(env, 'XDG_STATE_HOME', home, '.local/state')}/aghbus",
        config_dir=f"{_base(env, 'XDG_CONFIG_HOME', home, '.config')}/aghbus",
        socket_dir=f"{runtime}/aghbus" if runtime else f"/tmp/aghbus-{uid}",  # noqa: S108 - checked: private_folder_problem
    )


def check_socket_path(path: str, limit: int) -> None:
    """Raise `LocationError` when `path` with its closing NUL does not fit `limit` bytes (`SOCKET_PATH_LIMIT_*`)."""
    size = len(path.encode("utf-8", "surrogateescape")) + 1
    if size > limit:
        raise LocationError(
            "api.socket",
            f"the socket path {path!r} takes {size} bytes, the system allows {limit} with the closing NUL",
            "choose a shorter --name, or a short path with --api-socket or XDG_RUNTIME_DIR",
        )


def private_folder_problem(mode: int, owner: int, uid: int) -> str:
    """What makes a folder unfit to hold our sockets and secrets, or "" when it is fit.

    `mode` and `owner` come from an lstat, so that a symbolic link is seen as one. In a shared `/tmp` anybody may have
    made the folder before us: clients that connect to a socket in it must check this too.
    """
    if stat.S_ISLNK(mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(mode):
        return "is not a folder"
    if owner != uid:
        return f"belongs to user {owner}, not to user {uid}"
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return f"has mode {stat.S_IMODE(mode):04o}, others may enter it (0700 is needed)"
    return ""


def token_file_problem(path: str, mode: int, env: Mapping[str, str]) -> str:
    """What makes a token file with this mode unfit, or "" when only its owner may use it.

    A systemd credential may have the mode 0440: its folder keeps other users out, and an access list for the service's user
    shows as the bits of the group.
    """
    folder = path.rpartition("/")[0]
    allowed = 0o640 if folder and folder == _absolute(env.get("CREDENTIALS_DIRECTORY", "")) else 0o600
    return f"has mode {stat.S_IMODE(mode):04o}, so that other users may use it" if mode & 0o077 & ~allowed else ""


def _base(env: Mapping[str, str], variable: str, home: str, below_home: str) -> str:
    named = _absolute(env.get(variable, ""))
    if named:
        return named
    if not _absolute(home):
        raise LocationError("HOME", "names no absolute folder", f"set HOME or {variable} to an absolute path")
    return f"{_absolute(home)}/{below_home}"


def _absolute(path: str) -> str:
    """`path` without closing slashes when absolute and free of NUL, else ""; the root folder itself is not offered."""
    return path.rstrip("/") if path.startswith("/") and "\0" not in path else ""
