"""Writes files below a root, all or none, with paths chosen by an untrusted peer and other processes in the same folders.

Every operation uses a descriptor of its folder, opened with O_NOFOLLOW from its parent: no path component is a symbolic link,
and a link that is swapped in later has no effect, since no path is resolved twice. New content is staged in temporary files in
the target folder. Then a new file is published with link(2), which never overwrites, and an updated one with rename(2).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from types import TracebackType

from aghbus.protocol.formats.humaninloop.files import PlannedFile, is_git_repository, same_name

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ApplyRefused(Exception):
    """A file cannot be written as requested; nothing below the root has changed, unless `code` is `undo_failed`."""

    def __init__(self, message: str, hint: str = "", code: str = "apply_refused") -> None:
        super().__init__(message)
        self.message, self.hint, self.code = message, hint, code


class _PendingFile:
    """A file to write: `folder` is the descriptor of its folder, `existing` the file that it replaces."""

    def __init__(self, file: PlannedFile) -> None:
        self.file = file
        self.name = file.segments[-1]
        self.folder = -1
        self.existing: os.stat_result | None = None
        self.written: os.stat_result | None = None
        self.temporary = ""
        self.backup = ""
        self.published = False


class AtomicFileWriter:
    """Writes the files of one plan: call `check`, `stage` and `commit` in this order. Leaving the context without a commit
    reverts everything. The paths of `files` are already validated (`plan_files`).

    Every other method raises ApplyRefused with the file and the reason. The root is chosen by the operator and may be a link.
    """

    def __init__(self, root: str, files: Sequence[PlannedFile]) -> None:
        """Raises OSError when `root` is not a folder that can be opened."""
        self._files = [_PendingFile(file) for file in files]
        self._folders: dict[tuple[str, ...], int] = {}
        self._created: list[tuple[int, str]] = []
        self._committed = False
        self._folders[()] = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> AtomicFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Revert uncommitted changes, and close all descriptors."""
        try:
            if not self._committed:
                self._undo(error)
        finally:
            for handle in self._folders.values():
                os.close(handle)
            self._folders.clear()

    def check(self) -> None:
        """Check every file against the existing ones; nothing is written."""
        for pending in self._files:
            folder, missing = self._open_folders(pending)
            if missing:
                if pending.file.operation == "update":
                    raise _refused(pending, "does not exist, so it cannot be updated")
                _check_similar_names(pending, folder, missing)
            else:
                _check_entry(pending, folder)
        self._check_git()

    def stage(self) -> None:
        """Create missing folders, and write each content to a temporary file in the target folder."""
        unique = os.urandom(8).hex()  # of no other writer, also not of one that was killed with our process id
        for number, pending in enumerate(self._files):
            pending.folder = self._make_folder(pending)
            _check_entry(pending, pending.folder)
            pending.temporary = f".agh-{unique}-{number}.new"
            try:
                pending.written = _write_temporary(pending)
            except OSError as error:
                raise _refused(pending, error.strerror or str(error)) from None

    def commit(self) -> None:
        """Publish every staged file. A failure reverts those already published."""
        for pending in self._files:
            try:
                _publish(pending)
            except FileExistsError as error:
                why = "exists, so it cannot be created" if pending.existing is None else f"{error.filename2} exists"
                raise _refused(pending, why) from None
            except OSError as error:
                raise _refused(pending, error.strerror or str(error)) from None
        self._check_git()  # again: other processes may write here, too
        self._committed = True
        for pending in self._files:
            with contextlib.suppress(OSError):  # all files are published: only a hidden temporary file may stay
                _remove(pending.folder, pending.temporary)
                _remove(pending.folder, pending.backup)
        for handle in self._folders.values():
            with contextlib.suppress(OSError):  # some file systems know no fsync of a folder
                os.fsync(handle)

    def _check_git(self) -> None:
        """Refuse the root and every folder below it that is, or would become, a Git repository."""
        entries: dict[tuple[str, ...], set[str]] = {}
        for pending in self._files:
            *above, name = pending.file.segments
            for depth, folder in enumerate(above):
                entries.setdefault(tuple(above[:depth]), set()).add(f"{folder}/")
            entries.setdefault(tuple(above), set()).add(name)
        for path, names in entries.items():
            if path in self._folders:
                with os.scandir(self._folders[path]) as existing:
                    names.update(
                        f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in existing
                    )
            if is_git_repository(names):
                why = "with objects, refs or commondir beside it the folder is a Git repository: its files run programs"
                raise ApplyRefused(f"{'/'.join((*path, 'HEAD'))}: {why}", "nothing was written", code="path_git")

    def _open_folders(self, pending: _PendingFile) -> tuple[int, str]:
        """Open the folders of a file. Returns the deepest existing one, and the name of the first missing one ("" if none)."""
        above = pending.file.segments[:-1]
        for depth in range(1, len(above) + 1):
            if above[:depth] in self._folders:
                continue
            parent = self._folders[above[: depth - 1]]
            try:
                self._folders[above[:depth]] = os.open(above[depth - 1], _FOLDER, dir_fd=parent)
            except FileNotFoundError:
                return parent, above[depth - 1]
            except OSError as error:
                raise _refused(pending, _no_folder(above[:depth], error)) from None
        return self._folders[above], ""

    def _make_folder(self, pending: _PendingFile) -> int:
        """The folder of a file, created if missing."""
        folder, missing = self._open_folders(pending)
        while missing:
            try:
                os.mkdir(missing, 0o777, dir_fd=folder)
                self._created.append((folder, missing))
            except FileExistsError:
                pass  # another process created it: it is opened, or refused, like any other
            except OSError as error:
                raise _refused(pending, error.strerror or str(error)) from None
            folder, missing = self._open_folders(pending)
        return folder

    def _undo(self, cause: BaseException | None) -> None:
        """Revert, latest first. If that fails, raise ApplyRefused with the cause and the files concerned."""
        left: list[str] = []
        for pending in reversed(self._files):
            try:
                _revert(pending)
            except OSError as error:
                left.append(f"{pending.file.path}: {error.strerror}")
        for folder, name in reversed(self._created):
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError:
                continue  # another process changed it meanwhile
        if left:
            why = f"{cause}; and could not be reverted: {'; '.join(left)}"
            raise ApplyRefused(why, "check these files before you continue", code="undo_failed")


def _no_folder(above: tuple[str, ...], error: OSError) -> str:
    folder = "/".join(above)
    # O_DIRECTORY with O_NOFOLLOW answers ENOTDIR for a link and for a file alike.
    return f"{folder} is not a folder: {error.strerror} (symbolic links are not followed)"


def _check_entry(pending: _PendingFile, folder: int) -> None:
    """Check that the target matches the operation; for an update remember the existing file."""
    try:
        status = os.stat(pending.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        if pending.file.operation == "update":
            raise _refused(pending, "does not exist, so it cannot be updated") from None
        _check_similar_names(pending, folder, pending.name)
        return
    except OSError as error:
        raise _refused(pending, error.strerror or str(error)) from None
    if pending.file.operation == "create":
        raise _refused(pending, "exists, so it cannot be created")
    if not stat.S_ISREG(status.st_mode):
        raise _refused(pending, "is not a regular file (symbolic links are not followed)")
    pending.existing = status


def _check_similar_names(pending: _PendingFile, folder: int, name: str) -> None:
    """Refuse a new name that differs from an existing one only in case or Unicode form: some file systems merge them."""
    wanted = same_name(name)
    for other in os.listdir(folder):
        if other != name and same_name(other) == wanted:
            raise _refused(pending, f"{other} exists, which is the same name on some file systems")


def _write_temporary(pending: _PendingFile) -> os.stat_result:
    """Write and sync the content to a temporary file in the target folder; an updated file keeps its permissions but
    is not executable."""
    handle = os.open(pending.temporary, _NEW, 0o666, dir_fd=pending.folder)
    with os.fdopen(handle, "wb") as stream:
        stream.write(pending.file.content.encode())
        stream.flush()
        if pending.existing is not None:
            with contextlib.suppress(PermissionError):  # only root may change the owner
                os.fchown(handle, pending.existing.st_uid, pending.existing.st_gid)
            os.fchmod(handle, stat.S_IMODE(pending.existing.st_mode) & 0o666)
        os.fsync(handle)
        return os.fstat(handle)


def _publish(pending: _PendingFile) -> None:
    """Publish a new file with link(2), which fails if the name exists, or an updated one with rename(2), keeping a backup."""
    pending.published = True  # from here on a revert checks whether the name is ours
    if pending.existing is None:
        _link(pending, pending.temporary, pending.name)
        return
    backup = pending.temporary.removesuffix("new") + "old"
    _link(pending, pending.name, backup)
    pending.backup = backup
    if not _is_same(os.stat(backup, dir_fd=pending.folder, follow_symlinks=False), pending.existing):
        raise _refused(pending, "was changed by another process")
    _rename(pending, pending.temporary)


def _link(pending: _PendingFile, source: str, target: str) -> None:
    os.link(source, target, src_dir_fd=pending.folder, dst_dir_fd=pending.folder, follow_symlinks=False)


def _rename(pending: _PendingFile, source: str) -> None:
    os.rename(source, pending.name, src_dir_fd=pending.folder, dst_dir_fd=pending.folder)


def _revert(pending: _PendingFile) -> None:
    """Revert one file. A target that another process replaced meanwhile is left alone."""
    if pending.folder < 0:
        return
    if pending.published and pending.written is not None and _is_unchanged(pending):
        if pending.backup:
            _rename(pending, pending.backup)
        else:
            _remove(pending.folder, pending.name)
    _remove(pending.folder, pending.temporary)
    _remove(pending.folder, pending.backup)


def _is_unchanged(pending: _PendingFile) -> bool:
    try:
        status = os.stat(pending.name, dir_fd=pending.folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return pending.written is not None and _is_same(status, pending.written)


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether both are the same file with the same content. Inode numbers are reused, so they are not enough."""
    return _identity(one) == _identity(other)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode), status.st_size, status.st_mtime_ns


def _remove(folder: int, name: str) -> None:
    if not name:
        return
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


def _refused(pending: _PendingFile, why: str) -> ApplyRefused:
    return ApplyRefused(f"{pending.file.path}: {why}", "nothing was written")
