"""Folders that are private, and files that survive a loss of power."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def make_private_folder(folder: str | os.PathLike[str]) -> None:
    """Make `folder` and the missing ones above it, each with mode 0700 whatever the umask. Those that exist stay as they are.

    Raises OSError.
    """
    path = os.fspath(folder)
    try:
        os.mkdir(path, 0o700)  # noqa: PTH102 - pathlib is slow to load
    except FileNotFoundError:
        make_private_folder(os.path.dirname(path))  # noqa: PTH120 - as above
        make_private_folder(path)
    except FileExistsError:
        if not os.path.isdir(path):  # noqa: PTH112 - as above
            raise
    else:
        os.chmod(path, 0o700)  # noqa: PTH101 - as above; a umask may have taken bits of ours


def is_exposed(status: os.stat_result) -> bool:
    """Whether users may read a file with a secret who need not. One of another owner, as in a volume of Kubernetes, we can read by
    its group only."""
    return bool(status.st_mode & (0o077 if status.st_uid == os.geteuid() else 0o007))


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Write the names in `folder` to the disk: a file created or renamed there survives a loss of power. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def as_owner(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Act as the user whom `folder` belongs to, while the context lasts, if we are root and there is such a folder: its daemon can
    use what is written there, and a link in it leads no further than that user gets. The whole process acts so."""
    if folder is None or os.geteuid() != 0 or not os.path.isdir(folder):  # noqa: PTH112 - as above
        yield
        return
    status = os.stat(folder)  # noqa: PTH116 - as above
    group = os.getegid()
    os.setegid(status.st_gid)
    os.seteuid(status.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
