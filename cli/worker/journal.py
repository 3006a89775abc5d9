"""The worker's journal: what has been taken, started, finished, so that no restart runs a finished job again.

`$XDG_STATE_HOME/aghbus/serve/NAME/` holds one file per job, JSON lines, each on the disk (fsync) before the step after it:

    taken      the message and its lease           before the work is accepted or rejected
    starting   this worker is about to start it    before the command is started
    started    pid and start time of the command   once it runs
    finished   verb, message, result, artifacts    before the terminal trace is sent
    reported   the daemon has said yes             before the message is acknowledged

Then the file goes. File names are random: nothing that a peer chose becomes a path. A file is locked (flock) for as long as
its worker lives, so a file that can be locked was left by one that died; any worker of the same daemon takes it up. The
folder's own lock keeps a file that is just being made from being taken for such a one.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from aghbus.store.host.file_lock import lock, try_lock
from aghbus.store.host.files import sync_folder

_SUFFIX = ".jsonl"
_INPUT = ".input.json"


class JournalEntry:
    """The file of one job, locked by us. `records` are its lines; the last one says how far it has come."""

    def __init__(self, path: Path, stream: IO[bytes], records: list[dict[str, Any]]) -> None:
        self._path = path
        self._stream = stream
        self.records = records

    @property
    def token(self) -> str:
        """The random name of the job: the command's mark, and the root of the ids of what is sent about it."""
        return self._path.name.removesuffix(_SUFFIX)

    @property
    def phase(self) -> str:
        """The last step that is on the disk."""
        return str(self.records[-1]["phase"]) if self.records else ""

    @property
    def input_path(self) -> Path:
        """Where the command finds its input as a file."""
        return self._path.with_name(self.token + _INPUT)

    def last(self, phase: str) -> dict[str, Any] | None:
        """The latest record of that phase."""
        return next((record for record in reversed(self.records) if record["phase"] == phase), None)

    def write(self, phase: str, **fields: Any) -> None:
        """One step more; on the disk when this returns. Raises OSError."""
        record = {"phase": phase, **fields}
        self._append(json.dumps(record).encode() + b"\n")
        self.records.append(record)

    def _append(self, line: bytes) -> None:
        """A line that did not get on the disk whole (it is full) is taken back, so that the next one is not glued to it."""
        handle = self._stream.fileno()
        size = os.fstat(handle).st_size
        try:
            while line:
                line = line[os.write(handle, line) :]
            os.fsync(handle)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, size)
            raise

    def remove(self) -> None:
        """Nothing is left to do for this job."""
        self.input_path.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self._stream.close()

    def leave(self) -> None:
        """Unlock it as it is, for the next worker."""
        self._stream.close()


class Journal:
    """All files of the workers of one daemon."""

    def __init__(self, folder: str) -> None:
        """`folder` is made when it is missing, for its owner alone. Raises OSError."""
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def begin(self, **fields: Any) -> JournalEntry:
        """A new file with its first record, `taken`. Raises OSError."""
        path = self._folder / f"job_{secrets.token_hex(12)}{_SUFFIX}"
        with self._locked():
            stream = _opened(path, os.O_CREAT | os.O_EXCL)
            try_lock(stream.fileno())  # always succeeds: the file is new and the folder is locked
            entry = JournalEntry(path, stream, [])
        try:
            entry.write("taken", **fields)
            sync_folder(self._folder)  # the file's name, too, survives a crash of the machine
        except OSError:
            entry.remove()
            raise
        return entry

    def abandoned(self) -> list[JournalEntry]:
        """The files whose workers died, oldest first, locked by us. A file without a whole first line says nothing, and goes."""
        with self._locked():
            found = [entry for path in self._folder.glob(f"*{_SUFFIX}") if (entry := _claim(path)) is not None]
        kept = [entry for entry in found if entry.records]
        for entry in found:
            if not entry.records:
                entry.remove()
        return sorted(kept, key=lambda entry: entry.records[0].get("seq", 0))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / "lock").open("ab") as file:
            lock(file.fileno())
            yield


def _opened(path: Path, flags: int = 0) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600), "a+b")


def _claim(path: Path) -> JournalEntry | None:
    """The file, if its worker is gone. A line that a crash cut short is cut off, so that the next one is whole."""
    try:
        stream = _opened(path)
    except FileNotFoundError:
        return None
    if not try_lock(stream.fileno()) or not os.fstat(stream.fileno()).st_nlink:  # alive, or has just finished with it
        stream.close()
        return None
    stream.seek(0)
    data = stream.read()
    complete = data[: data.rfind(b"\n") + 1]
    stream.truncate(len(complete))
    return JournalEntry(path, stream, _records(complete))


def _records(data: bytes) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for line in data.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            break  # a damaged line: what comes after it cannot be trusted to follow on it
        if not isinstance(record, dict) or "phase" not in record:
            break
        records.append(record)
    return records if records and records[0]["phase"] == "taken" and "item" in records[0] else []
