"""Files that survive a loss of power."""

from __future__ import annotations

import os


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Write the names in `folder` to the disk: a file created or renamed there survives a loss of power. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
