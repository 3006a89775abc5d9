"""`aghctl backup` (offline): a checked copy of the store, made from the file itself, also while the daemon runs."""

from __future__ import annotations

import contextlib
import os
import sys
import time

from aghbus.cli.app.arguments import positive
from aghbus.cli.app.errors import YES, AnswerIsNo, unusable
from aghbus.cli.app.text import counted, safe, size
from aghbus.cli.context import Context
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

_BAR = 30  # characters


def run(context: Context, values: dict[str, Any]) -> int:
    """Copy the store, check the copy, and put it in its place."""
    from pathlib import Path

    from aghbus.host.files import make_private_folder, sync_folder
    from aghbus.store.engine.backup import copies
    from aghbus.store.engine.backup.copying import copy_store, discard
    from aghbus.store.errors import StoreError

    target, folder = _target(values)
    removed: list[Path] = []
    store = Path(values["store"] or context.places.store_path)
    part = target.with_name(f"{target.name}.part")
    try:
        keys = _keys(Path(context.places.state_dir)) if values["with_keys"] else []
        if values["keep"] is None:
            _require_free(target, [folder / path.name for path in keys] if folder else [], force=values["force"])
        make_private_folder(target.parent)
        discard(part)  # of a backup that was interrupted
        if values["keep"] is not None:
            copies.clear(target.parent)
        with _moving(store) if values["move"] else contextlib.nullcontext():
            made = copy_store(store, part, _progress(context))
            _place(part, target)
        if folder is not None:
            _write(folder / copies.HEAD_NAME, f"{made.head}\n".encode())
        for path in keys:
            _write(target.parent / path.name, path.read_bytes())
        if folder is not None and values["keep"] is not None:
            folder = folder.rename(folder.with_name(copies.name_at(time.time_ns() // 1_000_000)))
            sync_folder(folder.parent)
            target, removed = folder / copies.STORE_NAME, copies.remove_older(folder, values["keep"])
    except StoreError as error:
        raise unusable(store, str(error), f"{error.hint}; --store or --name says which store", "store") from None
    except OSError as error:
        raise AnswerIsNo(
            f"{error.filename}: {os.strerror(error.errno or 0)}", "name another place", code="file"
        ) from None
    found = {
        "file": str(target),
        "bytes": made.bytes,
        "commits": made.head.n,
        "last_seq": made.head.last_seq,
        "head": str(made.head),
        "newest_ms": made.at_ms,
        "keys": [path.name for path in keys],
        "removed": [str(path) for path in removed],
    }
    context.output.answer(found, _human)
    return YES


@contextlib.contextmanager
def _moving(store: Path) -> Generator[None]:
    """Mark the store as moved before it is copied, while no daemon uses it."""
    from aghbus.host.files import as_owner
    from aghbus.store.engine.backup import epoch
    from aghbus.store.engine.store_lock import StoreLock

    lock = StoreLock(store)
    try:
        with as_owner(store.parent):
            lock.acquire("aghctl backup")
            epoch.seal(store, time.time_ns() // 1_000_000)
        try:
            yield
        except BaseException:
            with as_owner(store.parent):
                epoch.unseal(store)
            raise
    finally:
        lock.release()


def _target(values: dict[str, Any]) -> tuple[Path, Path | None]:
    """The file of the copy, and the folder of the backup if it is one."""
    from pathlib import Path

    from aghbus.store.engine.backup.copies import STORE_NAME, UNFINISHED

    named = Path(values["target"])
    if values["keep"] is not None:
        if values["move"] or values["force"]:
            raise UsageError("--keep goes with neither --move nor --force", "name a new folder for the copy of a move")
        return named / UNFINISHED / STORE_NAME, named / UNFINISHED
    if named.is_dir() or values["target"].endswith("/") or (values["with_keys"] and not named.exists()):
        return named / STORE_NAME, named
    if values["with_keys"]:
        raise UsageError("--with-keys needs a folder", "name a folder: it gets the store and the keys")
    return named, None


def _require_free(target: Path, keys: list[Path], *, force: bool) -> None:
    for path in (target, *keys):
        if os.path.lexists(path) and not force:
            raise AnswerIsNo(f"{path} exists already", "name another file or folder, or add --force", code="exists")


def _keys(state_dir: Path) -> list[Path]:
    """The private keys of the instance, present and former, and the statements of their rotations."""
    from aghbus.host.key_files import is_private_key
    from aghbus.store.engine.backup.copies import KEY_ENDINGS

    found = [path for path in sorted(state_dir.glob("*")) if path.is_file()]
    keys = {path for path in found if path.suffix == ".pem" and is_private_key(path.read_bytes())}
    return [path for path in found if path in keys or path.name.endswith(KEY_ENDINGS[1:])]


def _place(part: Path, target: Path) -> None:
    from aghbus.host.files import sync_folder
    from aghbus.store.engine.commit.watermark import watermark_path

    part.replace(target)
    if watermark_path(part).exists():
        watermark_path(part).replace(watermark_path(target))
    sync_folder(target.parent)


def _write(path: Path, content: bytes) -> None:
    from aghbus.store.engine.backup.copying import write_private

    path.unlink(missing_ok=True)
    write_private(path, content)


def _progress(context: Context) -> Callable[[int, int], None]:
    """Draws a bar on standard error, if a person reads there."""
    shown = context.output.human and sys.stderr.isatty()

    def draw(done: int, total: int) -> None:
        if not shown:
            return
        filled = _BAR * done // max(1, total)
        with contextlib.suppress(OSError):  # the terminal was closed
            sys.stderr.write(f"\r\033[K[{'#' * filled:<{_BAR}}] {100 * done // max(1, total)} %")
            sys.stderr.write("\r\033[K" if done >= total else "")
            sys.stderr.flush()

    return draw


def _human(found: dict[str, Any]) -> str:
    copied = f"{size(found['bytes'])}, {counted(found['commits'], 'commit')} up to sequence {found['last_seq']}"
    lines = [f"{safe(found['file'])}: {copied}, checked", f"head {found['head']}"]
    lines += [f"key {safe(name)}" for name in found["keys"]]
    return "\n".join([*lines, *(f"removed {safe(path)}" for path in found["removed"])])


COMMANDS = {
    "backup": Command(
        run,
        description=(
            "Copy the store of an instance to FILE, or to DIR/store.db, also while its daemon runs, and check the copy. Nothing\n"
            "is overwritten without --force. With --keep each backup is a new folder DIR/TIME, and of those of this store the\n"
            "newest N are left. `aghd restore` restores it (docs/backup.md). Needs no daemon."
        ),
        examples=[
            "aghctl --name ops backup ops.db",
            "aghctl --name ops backup /var/backups/ops/ --with-keys --force",
            "aghctl --name ops backup /var/backups/ops/ --keep 14",
            "aghctl --name ops backup ops-moves/ --with-keys --move",
        ],
        arguments=[
            Argument("target", metavar="FILE|DIR", help="where the backup goes; a name that ends with / is a folder"),
            Argument("--with-keys", action="store_true", help="also the private keys; the backup is a folder then"),
            Argument(
                "--move",
                action="store_true",
                help="the instance is to go on somewhere else, where this is restored, and not here: its daemon is stopped",
            ),
            Argument(
                "--keep",
                metavar="N",
                type=positive,
                help="make a folder named by the time in DIR, and leave N such backups there",
            ),
            Argument("--force", action="store_true", help="overwrite an existing backup"),
            Argument(
                "--store", metavar="FILE", help="database file (default: store.db in the instance's state folder)"
            ),
        ],
    )
}
