"""Files that survive a loss of power."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `aghctl` imports this module: typing is slow to load
if TYPE_CHECKING:
    from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Write the names in `folder` to the disk: a file created or renamed there survives a loss of power. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
