"""The folders of a sandbox, and the environment that leads there."""

from __future__ import annotations

import os
import shutil
import tempfile

from aghbus.client.errors import UsageError
from aghbus.host.file_lock import is_locked
from aghbus.host.locations import LocationError, Locations, locate

LONGEST_ROOT = 60
"""Longest path of the temporary folder in bytes: socket paths below it are limited to 104 bytes on some systems."""
_OURS = ("AGHD_", "AGHCTL_", "NATS_", "XDG_")


class Folders:
    """State and logs in `root`, which remains; without one in the `temporary` folder. The sockets are there: their paths are short.

    `variables` are those of the folders, `environment` is that of the daemons.
    """

    def __init__(self, root: str | os.PathLike[str] | None) -> None:
        self.temporary = _temporary_folder()
        self.root = self.temporary if root is None else os.path.abspath(root)  # noqa: PTH100 - pathlib is slow to load
        self.variables = {
            "XDG_STATE_HOME": f"{self.root}/state",
            "XDG_CONFIG_HOME": f"{self.root}/config",
            "XDG_RUNTIME_DIR": f"{self.temporary}/run",
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        self.environment = {**inherited, "HOME": self.root, **self.variables}
        os.makedirs(self.root, exist_ok=True)  # noqa: PTH103 - as above
        os.mkdir(self.variables["XDG_RUNTIME_DIR"], 0o700)  # noqa: PTH102 - as above

    def places(self, name: str) -> Locations:
        """The paths of the daemon `name`. Raises UsageError for an illegal name."""
        try:
            return locate(name, self.environment, uid=os.getuid(), home=self.root)
        except LocationError as error:
            raise UsageError(f"{error.key}: {error.rule}", error.hint) from None

    def has_broker(self) -> bool:
        """Whether the embedded broker, or the process that guards it, still runs."""
        broker = self.places("any").broker_dir
        return is_locked(f"{broker}/guard.lock") or is_locked(f"{broker}/server.lock")

    def remove(self) -> None:
        """Remove the temporary folder."""
        shutil.rmtree(self.temporary, ignore_errors=True)


def _temporary_folder() -> str:
    made = tempfile.mkdtemp(prefix="aghbus-")
    if len(os.fsencode(made)) > LONGEST_ROOT:
        os.rmdir(made)  # noqa: PTH106 - pathlib is slow to load
        made = tempfile.mkdtemp(prefix="aghbus-", dir="/tmp")
    return made
