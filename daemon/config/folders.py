"""The host's part of the configuration, and the folders of store and socket, created and checked."""

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from aghbus.daemon.config.loader import Host
from aghbus.host.files import make_private_folder
from aghbus.host.locations import (
    SOCKET_PATH_LIMIT_ELSEWHERE,
    SOCKET_PATH_LIMIT_LINUX,
    LocationError,
    Locations,
    private_folder_problem,
)


def this_host(env: Mapping[str, str]) -> Host:
    """Values of the machine and our process; the home folder is `$HOME`, else that of the user database."""
    return Host(
        uid=os.getuid(),
        home=env.get("HOME") or str(Path("~").expanduser()),
        hostname=socket.gethostname(),
        folder=str(Path.cwd()),
        socket_path_limit=SOCKET_PATH_LIMIT_LINUX if sys.platform == "linux" else SOCKET_PATH_LIMIT_ELSEWHERE,
    )


def prepare_folders(locations: Locations) -> None:
    """Create the folders of the store and the socket, mode 0700, and check them. Raises `LocationError`.

    The broker creates its own folder. A folder that the operator named only has to be closed to writes of other users; our own
    folder below a shared one must also be ours and private.
    """
    _make_private(Path(locations.state_dir), "XDG_STATE_HOME", "set XDG_STATE_HOME to a folder of yours")
    store_folder = Path(locations.store_path).parent
    if store_folder != Path(locations.state_dir):
        _make_named(store_folder, "store.path")
    if locations.socket_dir_private:
        _make_private(
            Path(locations.socket_dir), "api.socket", "set XDG_RUNTIME_DIR to a folder of yours, or --api-socket"
        )
    else:
        _make_named(Path(locations.socket_dir), "api.socket")


def _make_private(folder: Path, key: str, hint: str) -> None:
    _make(folder, key, hint)
    status = folder.lstat()
    if status.st_uid == os.getuid() and not folder.is_symlink() and status.st_mode & 0o077:
        folder.chmod(0o700)  # our own folder, created with another umask
        status = folder.lstat()
    if problem := private_folder_problem(status.st_mode, status.st_uid, os.getuid()):
        raise LocationError(key, f"the folder {folder} {problem}", hint)


def _make_named(folder: Path, key: str) -> None:
    _make(folder, key, "make the folder, or name another path")
    mode = folder.stat().st_mode
    if mode & 0o002 and not mode & 0o1000:
        raise LocationError(key, f"any user may replace files in the folder {folder}", f"chmod o-w {folder}")


def _make(folder: Path, key: str, hint: str) -> None:
    try:
        make_private_folder(folder)
    except OSError as error:
        raise LocationError(key, f"the folder {folder} cannot be made: {os.strerror(error.errno or 0)}", hint) from None
