"""A worker's journal of jobs, so that a restart never does again what was done.

A folder has one file per job, with JSON lines. Each line is synced to disk before the next step. Those of `aghctl serve`, in
`$XDG_STATE_HOME/aghbus/clients/NAME/serve/` (folders.py):

    taken      the message and its lease           before the work is accepted or rejected
    starting   the command is about to be started  before the command is started
    started    pid and start time of the command   once it runs
    finished   verb, message, result, artifacts    before the terminal trace or the question is sent
    waiting    the question, and when it expires   before the thread of the job ends

After an answer, `starting` follows `waiting`. The file is deleted after the message is acknowledged. A trace that was sent
already is sent again with the same id, which has no effect.

File names begin with the sequence of the message and are random beyond that: no value chosen by a peer becomes a path. A file
is locked (flock) while its worker lives, so a file that can be locked belongs to a dead worker. Any worker of the same daemon
recovers it: when it starts, or when it gets the lease of the message. The lock of the folder protects files that are being
created.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from aghbus.host.file_lock import lock, try_lock
from aghbus.host.files import make_private_folder, sync_folder

_SUFFIX = ".jsonl"
_INPUT = ".input.json"


class JournalEntry:
    """The file of one job, locked by this process. `records` are its lines; the last one is the current phase."""

    def __init__(self, path: Path, stream: IO[bytes], records: list[dict[str, Any]]) -> None:
        self._path = path
        self._stream = stream
        self.records = records

    @property
    def token(self) -> str:
        """The random name of the job: identifies its processes, and is part of the message ids it sends."""
        return self._path.name.removesuffix(_SUFFIX)

    @property
    def phase(self) -> str:
        """The last phase that is on disk."""
        return str(self.records[-1]["phase"]) if self.records else ""

    @property
    def input_path(self) -> Path:
        """The file with the command's input."""
        return self._path.with_name(self.token + _INPUT)

    def last(self, phase: str) -> dict[str, Any] | None:
        """The latest record of that phase."""
        return next((record for record in reversed(self.records) if record["phase"] == phase), None)

    def questions(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The records `finished` and `waiting` of each run that ended with a question, oldest first."""
        pairs = itertools.pairwise(self.records)
        return [(before, record) for before, record in pairs if record["phase"] == "waiting"]

    def write(self, phase: str, **fields: Any) -> None:
        """Append a record and sync it. Raises OSError."""
        record = {"phase": phase, **fields}
        self._append(json.dumps(record).encode() + b"\n")
        self.records.append(record)

    def _append(self, line: bytes) -> None:
        """A partially written line (disk full) is truncated, so that the next line starts on its own."""
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
        """Delete the files of a job that is done."""
        self.input_path.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self._stream.close()

    def leave(self) -> None:
        """Unlock the file for the next worker."""
        self._stream.close()


class Journal:
    """The journal files of all workers of one daemon."""

    def __init__(self, folder: str) -> None:
        """`folder` is created if missing, with mode 0700. Raises OSError."""
        self._folder = Path(folder)
        make_private_folder(self._folder)

    def begin(self, **fields: Any) -> JournalEntry:
        """Create a file with its first record, `taken`. Raises OSError."""
        path = self._folder / f"job_{fields['seq']}_{secrets.token_hex(12)}{_SUFFIX}"
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

    def left(self, seq: int, message_id: str) -> JournalEntry | None:
        """The file that a dead worker left of the inbox message `seq`, locked by this process; None when there is none.

        Raises BlockingIOError while the worker lives, and OSError.
        """
        with self._locked():
            for path in self._folder.glob(f"job_{seq}_*{_SUFFIX}"):
                entry = _claim(path)
                if entry is None and path.exists():
                    raise BlockingIOError(errno.EAGAIN, "another worker runs the command for this work")
                if entry is not None and entry.records and entry.records[0]["item"]["message"]["id"] == message_id:
                    return entry
                if entry is not None:
                    entry.leave()
        return None

    def abandoned(self) -> list[JournalEntry]:
        """The files of dead workers, oldest first, locked by this process. Files without a complete first line are deleted."""
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
    """Lock the file if its worker is dead. A line cut short by a crash is truncated."""
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
            break  # a damaged line: later ones are not trusted
        if not isinstance(record, dict) or "phase" not in record:
            break
        records.append(record)
    return records if records and records[0]["phase"] == "taken" and "item" in records[0] else []
