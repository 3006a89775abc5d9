"""Push notification configs in files of the gateway's folder, with the position up to which each was delivered."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from aghbus.client import UsageError
from aghbus.host.file_lock import try_lock
from aghbus.host.files import make_private_folder, sync_folder
from aghbus.protocol.formats.a2a.parts import Json
from aghbus.protocol.formats.derived_ids import digest

MAX_CONFIGS: Final = 10_000
MAX_OF_CALLER: Final = 1_000
MAX_OF_TASK: Final = 10


class Config(msgspec.Struct, omit_defaults=True):
    """One webhook. `agent` is the name of the task's agent; `seq` of the last message that was delivered. `ended_ms`: since when
    nothing more is delivered."""

    id: str
    task_id: str
    agent: str
    url: str
    token: str = ""
    scheme: str = ""
    credentials: str = ""
    seq: int = 0
    ended_ms: int = 0

    def shown(self) -> Json:
        """The config as its client gets it."""
        made: Json = {"id": self.id, "taskId": self.task_id, "url": self.url}
        if self.token:
            made["token"] = self.token
        if self.scheme:
            made["authentication"] = {"scheme": self.scheme, "credentials": self.credentials}
        return made


class PushStore:
    """The configs in a folder, a file each. A change is on disk before it returns; one process at a time has them."""

    def __init__(self, folder: str) -> None:
        """Raises UsageError for a folder or file that cannot be used, or that another gateway uses."""
        self._folder = Path(folder, "push")
        try:
            make_private_folder(self._folder)
            self._lock = os.open(f"{folder}/push.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not try_lock(self._lock):
                hint = "stop it, or leave out --push-allow: one gateway of an instance sends notifications"
                raise UsageError("--push-allow: another gateway of this instance sends push notifications", hint)
            self._configs = self._read()
        except OSError as error:
            raise UsageError(f"the folder {folder} cannot be used: {error.strerror}") from None

    def __len__(self) -> int:
        return len(self._configs)

    def all(self) -> list[Config]:
        """Every config."""
        return [*self._configs.values()]

    def of_task(self, task_id: str) -> list[Config]:
        """The configs of a task, by id."""
        return sorted((one for one in self._configs.values() if one.task_id == task_id), key=lambda one: one.id)

    def get(self, task_id: str, identity: str) -> Config | None:
        """One config."""
        return self._configs.get((task_id, identity))

    def put(self, config: Config) -> None:
        """Keep a config as it is now. Raises OSError."""
        path = self._path(config.task_id, config.id)
        fresh = path.with_suffix(".new")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(msgspec.json.encode(config))
                stream.flush()
                os.fsync(stream.fileno())
            fresh.replace(path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        sync_folder(self._folder)
        self._configs[config.task_id, config.id] = config

    def remove(self, task_id: str, identity: str) -> bool:
        """Forget a config; False if there is none. Raises OSError."""
        if (task_id, identity) not in self._configs:
            return False
        self._path(task_id, identity).unlink(missing_ok=True)
        sync_folder(self._folder)
        del self._configs[task_id, identity]
        return True

    def _path(self, task_id: str, identity: str) -> Path:
        return self._folder / f"{digest('a2a-push-file', task_id, identity)}.json"

    def _read(self) -> dict[tuple[str, str], Config]:
        found = dict[tuple[str, str], Config]()
        for path in self._folder.glob("*.json"):
            try:
                one = msgspec.json.decode(path.read_bytes(), type=Config)
            except msgspec.DecodeError as error:
                hint = "move it away: its client then creates the config again"
                raise UsageError(f"{path} is damaged: {error}", hint) from None
            found[one.task_id, one.id] = one
        return found
