"""Restores a store from a backup, for `aghd restore`: the copy is checked before it takes the place of a store."""

import asyncio
import os
import tempfile
from pathlib import Path
from stat import S_ISDIR

import msgspec

from aghbus.daemon.check_store import StoreCheck, StoreReport, check_store
from aghbus.host.files import make_private_folder, sync_folder
from aghbus.host.key_files import is_private_key
from aghbus.protocol.agh.delivery.restored import Restored
from aghbus.store.engine.backup import copies, copying, epoch, placing
from aghbus.store.engine.commit.watermark import read_watermark, watermark_path
from aghbus.store.engine.database import Store
from aghbus.store.engine.store_lock import StoreLock
from aghbus.store.errors import StoreDamaged, StoreError, StoreUnopenable


class RestoreReport(msgspec.Struct, frozen=True):
    """What was restored: the epoch that begins, null for a store that was moved, the keys that were written, and the folder with
    what was replaced."""

    store: str
    restored: Restored | None
    keys: list[str]
    replaced: str | None


def restore(source: Path, store: Path, state_dir: Path, *, now_ms: int, replace: bool) -> RestoreReport:
    """Restores the file or folder `source` as `store`, and keys of the folder into `state_dir`, at Unix millisecond `now_ms`.

    Raises StoreError: StoreLocked while the instance runs, StoreDamaged for a copy that fails its check. An existing store, or
    another key of the same name, is only replaced with `replace`, and is kept in a folder beside it.
    """
    source, copy = _backup(source)
    lock, owned = StoreLock(store), _Ownership(store.parent)
    try:
        for folder in (store.parent, state_dir):
            owned.will_make(folder)
            make_private_folder(folder)
    except OSError as error:
        raise StoreUnopenable(store, f"its folder cannot be made: {error.strerror}", hint="check its path") from None
    owned.will_make(lock.path)
    lock.acquire("aghd restore")
    try:
        report = _restore(copy, source, store, state_dir, now_ms=now_ms, replace=replace)
        aside = [] if report.replaced is None else [Path(report.replaced)]
        owned.hand_over([store, watermark_path(store), *aside, *(state_dir / name for name in report.keys)])
        return report
    finally:
        owned.hand_over([])
        lock.release()


def verify(source: Path) -> StoreReport:
    """Restore the file or folder `source` into a folder for temporary files, check it, and open it as a daemon does.

    What `restore` would refuse is a failed check. Nothing is left. Raises OSError.
    """
    with tempfile.TemporaryDirectory(prefix="aghbus-restore-") as folder:
        try:
            source, copy = _backup(source)
            if source.is_dir():
                _keys_to_write(source, source)
            staged = Path(folder, copies.STORE_NAME)
            report = _stage(copy, staged)
            if report.ok:
                epoch.unseal(staged)
                asyncio.run(_open(staged))
        except StoreError as error:
            return StoreReport(False, str(source), [StoreCheck("backup", "fail", str(error), error.hint)])
    return msgspec.structs.replace(report, store=str(copy))


async def _open(store: Path) -> None:
    await (await Store.open(store, name="aghd restore")).close()


def _backup(source: Path) -> tuple[Path, Path]:
    """The backup that `source` means, the newest in a folder of several, and its copy of the store."""
    try:
        if source.is_dir() and not (source / copies.STORE_NAME).exists():
            source = copies.newest(source) or source
    except OSError as error:
        raise StoreUnopenable(source, f"cannot be read: {error.strerror}", hint="check its permissions") from None
    copy = source / copies.STORE_NAME if source.is_dir() else source
    if not copy.is_file():
        raise StoreUnopenable(copy, "is not a file", hint="name a file or a folder that `aghctl backup` made")
    return source, copy


class _Ownership:
    """Whom the restored files are to belong to when root restores: the user whom the nearest existing folder belongs to, which is
    that of the service beside a system unit."""

    def __init__(self, folder: Path) -> None:
        there = next(one for one in (folder, *folder.parents) if one.exists())
        self._owner = there.stat()
        self._made: list[Path] = []

    def will_make(self, path: Path) -> None:
        """Note what is about to be made, if it is missing, with the folders above it."""
        self._made += [one for one in (path, *path.parents) if not os.path.lexists(one)]

    def hand_over(self, paths: list[Path]) -> None:
        """Give these, and all that was made, to the owner. Raises StoreUnopenable."""
        if os.geteuid() != 0:
            return
        for path in {*paths, *self._made}:
            try:
                found = path.lstat()
                if found.st_uid == 0 and (
                    S_ISDIR(found.st_mode) or found.st_nlink == 1
                ):  # never a file of others under a second name
                    os.chown(path, self._owner.st_uid, self._owner.st_gid, follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                cause = f"cannot be given to its owner: {error.strerror}"
                raise StoreUnopenable(path, cause, hint=f"chown -R {self._owner.st_uid} {path.parent}") from None


def _restore(copy: Path, source: Path, store: Path, state_dir: Path, *, now_ms: int, replace: bool) -> RestoreReport:
    keys = _keys_to_write(source, state_dir) if source.is_dir() else {}
    if not replace:
        _require_free(store, [state_dir / name for name in keys])
    staged, aside = store.with_name(f"{store.name}.restoring"), placing.aside_folder(store, now_ms)
    copying.discard(staged)  # of a restore that was interrupted
    try:
        report = _stage(copy, staged)
        if not report.ok:
            failed = "; ".join(f"{one.check}: {one.detail}" for one in report.checks if one.state == "fail")
            raise StoreDamaged(copy, f"failed its check: {failed}", hint="restore another backup")
        restored = None if epoch.unseal(staged) else epoch.begin(staged, now_ms, read_watermark(store))
        replaced = placing.exists(store)
        placing.put_in_place(staged, store, aside)
        _write_keys(keys, state_dir, aside)
    except OSError as error:
        raise StoreUnopenable(store, f"cannot be written: {error.strerror}", hint="check the disk") from None
    finally:
        copying.discard(staged)
    return RestoreReport(str(store), restored, sorted(keys), str(aside) if replaced or aside.exists() else None)


def _require_free(store: Path, keys: list[Path]) -> None:
    hint = "with --replace it is moved to a folder beside it"
    if placing.exists(store):
        raise StoreError(store, "exists already", hint=hint)
    for path in keys:
        if os.path.lexists(path):
            raise StoreError(store, f"another key exists already: {path}", hint=hint)


def _stage(copy: Path, staged: Path) -> StoreReport:
    """Make a copy, bring it up to date and check it as `aghd check-store` does: with the mark file of the backup, where it has
    one."""
    copying.copy_store(copy, staged, lambda _done, _all: None)
    copying.update(staged)
    named = read_watermark(copy)
    if named is not None:
        watermark_path(staged).write_bytes(watermark_path(copy).read_bytes())
    return check_store(staged, quick=False)


def _keys_to_write(source: Path, state_dir: Path) -> dict[str, bytes]:
    """The key files of the backup by name, without those that are in place already."""
    try:
        found = {
            path.name: _read_key(source, path) for path in source.iterdir() if path.name.endswith(copies.KEY_ENDINGS)
        }
    except OSError as error:
        raise StoreUnopenable(source, f"cannot be read: {error.strerror}", hint="check its permissions") from None
    return {name: content for name, content in found.items() if _content(state_dir / name) != content}


def _read_key(source: Path, path: Path) -> bytes:
    """The content of a key file of the backup. Raises StoreError for what `aghctl backup` does not write, such as a link."""
    content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
    if content is None or (path.suffix == ".pem" and not is_private_key(content)):
        cause = f"its file {path.name} is " + ("not a regular file" if content is None else "not a private key")
        raise StoreError(source, cause, hint="remove it from the backup, or restore the file store.db alone")
    return content


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _write_keys(keys: dict[str, bytes], state_dir: Path, aside: Path) -> None:
    for name, content in keys.items():
        path = state_dir / name
        if os.path.lexists(path):
            make_private_folder(aside)
            path.replace(aside / name)
        copying.write_private(path, content)
    if keys:
        sync_folder(state_dir)
