"""Puts a prepared copy in the place of a store. The instance is stopped, and its lock is held."""

import os
from datetime import UTC, datetime
from pathlib import Path

from aghbus.host.files import make_private_folder, sync_folder
from aghbus.store.engine.commit.watermark import watermark_path
from aghbus.store.engine.database import explained

_LOGS = ("-wal", "-shm")


def exists(store: Path) -> bool:
    """Whether there is a store at this path, or what is left of one."""
    return any(os.path.lexists(path) for path in (store, watermark_path(store), _beside(store, "-wal")))


def aside_folder(store: Path, now_ms: int) -> Path:
    """The folder, beside the store, for the files that are replaced at Unix millisecond `now_ms`."""
    return store.with_name(f"replaced-{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%S.%f}")


def put_in_place(copy: Path, store: Path, aside: Path) -> None:
    """Moves the files of `store`, if there are any, to the folder `aside`, and `copy` with its mark file to their place.

    The old mark file is replaced last: a start after a crash in between notices that the store is not the one it names.
    Raises StoreError.
    """
    try:
        if exists(store):
            make_private_folder(aside)
            for path in (store, watermark_path(store)):
                if os.path.lexists(path):
                    (aside / path.name).hardlink_to(path)
            for suffix in _LOGS:  # a log of the old file would change the new one
                _move(_beside(store, suffix), aside)
            sync_folder(aside)
        copy.replace(store)
        if watermark_path(copy).exists():
            watermark_path(copy).replace(watermark_path(store))
        sync_folder(store.parent)
    except OSError as error:
        raise explained(store, error) from None


def _move(path: Path, folder: Path) -> None:
    if os.path.lexists(path):
        path.replace(folder / path.name)


def _beside(store: Path, suffix: str) -> Path:
    return store.with_name(store.name + suffix)
