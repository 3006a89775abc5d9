"""A folder of backups, each in a folder named by its time: which are there, and which are too many (docs/backup.md)."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aghbus.store.engine.commit.watermark import read_watermark, watermark_path

STORE_NAME: Final = "store.db"
HEAD_NAME: Final = "audit.head"
KEY_ENDINGS: Final = (".pem", ".rotation.json")
UNFINISHED: Final = "unfinished"
"""The folder of a backup until it is complete: an interrupted one is overwritten by the next."""
_TIME: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z")


def name_at(now_ms: int) -> str:
    """The name of the backup of Unix millisecond `now_ms`; by name they are in the order of time."""
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%SZ}"


def clear(folder: Path) -> None:
    """Remove what an interrupted backup has left in `folder`, which may be a key. Raises OSError."""
    for path in folder.iterdir():
        if _is_ours(path):
            path.unlink()


def newest(folder: Path) -> Path | None:
    """The newest backup in `folder`; None without one. Raises OSError."""
    found = [path for path in folder.iterdir() if _TIME.fullmatch(path.name) and (path / STORE_NAME).is_file()]
    return max(found, default=None)


def remove_older(made: Path, keep: int) -> list[Path]:
    """Remove the oldest backups beside the new one `made`, so that `keep` are left; those that were removed. Raises OSError.

    Only folders with a time as their name, with the files of a backup and no others, whose mark file is of the same store.
    """
    mark = read_watermark(made / STORE_NAME)
    others = sorted(path for path in made.parent.iterdir() if path != made and mark and _is_copy(path, mark.identity))
    excess = others[: max(0, len(others) - keep + 1)]
    for path in excess:
        _remove(path)
    return excess


def _is_copy(path: Path, identity: int) -> bool:
    if not _TIME.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
        return False
    mark = read_watermark(path / STORE_NAME)
    return mark is not None and mark.identity == identity and all(map(_is_ours, path.iterdir()))


def _is_ours(path: Path) -> bool:
    name = watermark_path(Path(STORE_NAME)).name
    return path.is_file() and (path.name in (STORE_NAME, name, HEAD_NAME) or path.name.endswith(KEY_ENDINGS))


def _remove(path: Path) -> None:
    """The mark file last: what is left of an interrupted removal is still known as a backup of this store."""
    mark = watermark_path(path / STORE_NAME)
    for file in path.iterdir():
        if file != mark:
            file.unlink()
    mark.unlink()
    path.rmdir()
