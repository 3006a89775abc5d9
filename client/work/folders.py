"""Folders of the processes beside a daemon: journals of workers and bridges, keys and webhooks of gateways.

They are in `$XDG_STATE_HOME/aghbus/clients/NAME/KIND` of the user who runs the process, also for a daemon of the system. A process
holds the lock of `clients/NAME` shared as long as it lives, so that `aghctl instances rm` does not remove what is in use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from aghbus.client.errors import UsageError
from aghbus.client.locate import locations
from aghbus.host.file_lock import FileLock, try_lock
from aghbus.host.files import make_private_folder


def lock_of(clients_dir: str) -> FileLock:
    """The lock of the folder `clients/NAME`, which must exist when it is taken."""
    return FileLock(f"{clients_dir}/lock")


def open_folder(name: str, env: Mapping[str, str], kind: str) -> str:
    """The folder of one kind of process beside the daemon called `name`, made if missing and in use until this process ends.

    Raises UsageError.
    """
    parent = locations(name, env).clients_dir
    folder = f"{parent}/{kind}"
    try:
        make_private_folder(folder)
        lock = os.open(f"{parent}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not try_lock(lock, shared=True):
            raise UsageError(f"the instance {name} is being removed", "start again when that is done")
    except OSError as error:
        raise UsageError(f"the folder {folder} cannot be created: {error.strerror}", "see XDG_STATE_HOME") from None
    return folder
