"""Writing files below a root, all or nothing, where strangers chose the paths and others may work in the same folders.

Every step goes through a descriptor of the folder that it happens in, opened with O_NOFOLLOW from its parent: no component is
a symbolic link, and one that is swapped in later leads nowhere, because no path is resolved twice. New content is staged in
temporary files beside its place; then a link (which never overwrites) puts a new file there, and a rename an updated one.
"""

from __future__ import annotations

import contextlib
import os
import stat

from aghbus.cli.app.errors import AnswerIsNo
from aghbus.client.errors import UsageError
from aghbus.protocol.adapters.humaninloop.files import same_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from aghbus.protocol.adapters.humaninloop.files import PlannedFile

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ApplyRefused(AnswerIsNo):
    """A file cannot be written as asked; nothing below the root has changed."""


class _PendingFile:
    """One file on its way: `folder` is the descriptor of the folder it belongs into, `before` the file that it replaces."""

    __slots__ = ("backup", "before", "file", "folder", "made", "name", "placed", "temporary")

    def __init__(self, file: PlannedFile) -> None:
        self.file = file
        self.name = file.segments[-1]
        self.folder = -1
        self.before: os.stat_result | None = None
        self.made: os.stat_result | None = None
        self.temporary = ""
        self.backup = ""
        self.placed = False


class AtomicFileWriter:
    """The files of one plan on their way to a folder: `check`, `stage`, `commit`, in this order; leaving it without a commit
    undoes all. The paths of `files` are judged already (`plan_files`).

    Every method raises Refused, naming the file and the reason. The root is the operator's own and may be a link.
    """

    def __init__(self, root: str, files: Sequence[PlannedFile]) -> None:
        self._steps = [_PendingFile(file) for file in files]
        self._folders: dict[tuple[str, ...], int] = {}
        self._created: list[tuple[int, str]] = []
        self._committed = False
        try:
            self._folders[()] = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"--root: {root}: {error.strerror}", "name a folder that exists") from None

    def __enter__(self) -> AtomicFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Undo what was not committed, and close every descriptor."""
        try:
            if not self._committed:
                self._undo(error)
        finally:
            for handle in self._folders.values():
                os.close(handle)
            self._folders.clear()

    def check(self) -> None:
        """Judge every file against what is there; nothing is made."""
        for step in self._steps:
            folder, missing = self._nearest(step)
            if missing:
                if step.file.operation == "update":
                    raise _refused(step, "does not exist, so it cannot be updated")
                _no_other_spelling(step, folder, missing)
            else:
                _check_entry(step, folder)

    def stage(self) -> None:
        """Make missing folders and write every content into a temporary file beside its place."""
        for number, step in enumerate(self._steps):
            step.folder = self._made(step)
            _check_entry(step, step.folder)
            step.temporary = f".agh-{os.getpid()}-{number}.new"
            try:
                step.made = _written(step)
            except FileExistsError:
                name, step.temporary = step.temporary, ""  # not ours: it must not be removed
                raise _refused(step, f"{name} is in the way, left by an interrupted run?") from None
            except OSError as error:
                raise _refused(step, error.strerror or str(error)) from None

    def commit(self) -> None:
        """Give every staged file its name. A failure takes back those that have theirs."""
        for step in self._steps:
            try:
                _place(step)
            except FileExistsError as error:
                why = "exists, so it cannot be created" if step.before is None else f"{error.filename2} is in the way"
                raise _refused(step, why) from None
            except OSError as error:
                raise _refused(step, error.strerror or str(error)) from None
        self._committed = True
        for step in self._steps:
            with contextlib.suppress(OSError):  # every file has its content: what stays is a hidden file beside it
                _remove(step.folder, step.temporary)
                _remove(step.folder, step.backup)
        for handle in self._folders.values():
            with contextlib.suppress(OSError):  # some file systems know no fsync of a folder
                os.fsync(handle)

    def _nearest(self, step: _PendingFile) -> tuple[int, str]:
        """The deepest folder of a file that exists, and the first one below it that does not ("" when all do)."""
        above = step.file.segments[:-1]
        for depth in range(1, len(above) + 1):
            if above[:depth] in self._folders:
                continue
            parent = self._folders[above[: depth - 1]]
            try:
                self._folders[above[:depth]] = os.open(above[depth - 1], _FOLDER, dir_fd=parent)
            except FileNotFoundError:
                return parent, above[depth - 1]
            except OSError as error:
                raise _refused(step, _no_folder(above[:depth], error)) from None
        return self._folders[above], ""

    def _made(self, step: _PendingFile) -> int:
        """The folder of a file, made where it is missing."""
        folder, missing = self._nearest(step)
        while missing:
            try:
                os.mkdir(missing, 0o777, dir_fd=folder)
                self._created.append((folder, missing))
            except FileExistsError:
                pass  # somebody was faster: it is opened, or refused, like any other
            except OSError as error:
                raise _refused(step, error.strerror or str(error)) from None
            folder, missing = self._nearest(step)
        return folder

    def _undo(self, cause: BaseException | None) -> None:
        """Latest first. What cannot be undone is left as it is, and Refused says so along with the cause."""
        left: list[str] = []
        for step in reversed(self._steps):
            try:
                _take_back(step)
            except OSError as error:
                left.append(f"{step.file.path}: {error.strerror}")
        for folder, name in reversed(self._created):
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError:
                continue  # somebody else put something there meanwhile, or took it away
        if left:
            why = f"{cause}; and could not be undone: {'; '.join(left)}"
            raise ApplyRefused(why, "look at these files before you go on", code="undo_failed")


def _no_folder(above: tuple[str, ...], error: OSError) -> str:
    folder = "/".join(above)
    # O_DIRECTORY with O_NOFOLLOW answers ENOTDIR for a link and for a file alike.
    return f"{folder} is no folder of its own: {error.strerror} (symbolic links are not followed)"


def _check_entry(step: _PendingFile, folder: int) -> None:
    """What is at a file's place is what its operation asks for; an update remembers which file that was."""
    try:
        there = os.stat(step.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        if step.file.operation == "update":
            raise _refused(step, "does not exist, so it cannot be updated") from None
        _no_other_spelling(step, folder, step.name)
        return
    except OSError as error:
        raise _refused(step, error.strerror or str(error)) from None
    if step.file.operation == "create":
        raise _refused(step, "exists, so it cannot be created")
    if not stat.S_ISREG(there.st_mode):
        raise _refused(step, "is no regular file (symbolic links are not followed)")
    step.before = there


def _no_other_spelling(step: _PendingFile, folder: int, name: str) -> None:
    """Refuse a new name beside one that differs from it by case or Unicode form only: elsewhere they are one file."""
    wanted = same_name(name)
    for other in os.listdir(folder):
        if other != name and same_name(other) == wanted:
            raise _refused(step, f"{other} is there, which some file systems take for the same name")


def _written(step: _PendingFile) -> os.stat_result:
    """The content in a temporary file of the target's folder, on disk; an updated file keeps its permissions."""
    handle = os.open(step.temporary, _NEW, 0o666, dir_fd=step.folder)
    with os.fdopen(handle, "wb") as stream:
        stream.write(step.file.content.encode())
        stream.flush()
        if step.before is not None:
            with contextlib.suppress(PermissionError):  # only root gives files away
                os.fchown(handle, step.before.st_uid, step.before.st_gid)
            os.fchmod(handle, stat.S_IMODE(step.before.st_mode) & 0o777)
        os.fsync(handle)
        return os.fstat(handle)


def _place(step: _PendingFile) -> None:
    """A new file by link, which fails when the name is taken; an updated one by rename, with the old one kept aside."""
    step.placed = True  # from here on undoing looks whether the name is ours
    if step.before is None:
        _link(step, step.temporary, step.name)
        return
    backup = step.temporary.removesuffix("new") + "old"
    _link(step, step.name, backup)
    step.backup = backup
    if not _is_same(os.stat(backup, dir_fd=step.folder, follow_symlinks=False), step.before):
        raise _refused(step, "was changed by somebody else meanwhile")
    _rename(step, step.temporary)


def _link(step: _PendingFile, source: str, target: str) -> None:
    os.link(source, target, src_dir_fd=step.folder, dst_dir_fd=step.folder, follow_symlinks=False)


def _rename(step: _PendingFile, source: str) -> None:
    os.rename(source, step.name, src_dir_fd=step.folder, dst_dir_fd=step.folder)


def _take_back(step: _PendingFile) -> None:
    """Undo one file, whatever of it was done; a name that somebody else took meanwhile stays theirs."""
    if step.folder < 0:
        return
    if step.placed and step.made is not None and _is_ours(step):
        if step.backup:
            _rename(step, step.backup)
        else:
            _remove(step.folder, step.name)
    _remove(step.folder, step.temporary)
    _remove(step.folder, step.backup)


def _is_ours(step: _PendingFile) -> bool:
    try:
        there = os.stat(step.name, dir_fd=step.folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return step.made is not None and _is_same(there, step.made)


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """The same file with the same content. Inode numbers are used again at once, so that they alone prove nothing."""
    return _identity(one) == _identity(other)


def _identity(there: os.stat_result) -> tuple[int, ...]:
    return there.st_dev, there.st_ino, stat.S_IFMT(there.st_mode), there.st_size, there.st_mtime_ns


def _remove(folder: int, name: str) -> None:
    if not name:
        return
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


def _refused(step: _PendingFile, why: str) -> ApplyRefused:
    return ApplyRefused(f"{step.file.path}: {why}", "nothing was written", code="apply_refused")
