"""The embedded broker's folder: its files, their modes, and how they are written.

All of it belongs to one user. The token is in two files, `token` and `nats.conf`, both 0600 in a folder that is 0700; it
is never an argument of a process.
"""

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

import msgspec

from aghbus.host.files import make_private_folder

MAX_PAYLOAD = 1_048_576 + 65_536
"""Bytes; one envelope at its limit (protocol section 1) and 64 KiB for headers and reply subject."""

_LOG_LIMIT = 8_388_608  # bytes of nats.log before it is rotated; one older file is kept
_FILE_STORE = 4_294_967_296  # bytes of JetStream streams on disk; a bound, not a reservation
_MEMORY_STORE = 67_108_864  # bytes of JetStream streams in memory; the JetStream profile uses the file store
_TOKEN_BYTES = 32  # of randomness: beyond guessing
_MIN_TOKEN = 16  # characters; a shorter file is a torn write, not a token


class BrokerError(Exception):
    """The embedded broker is not available: `op` is the failed operation, `cause` why it failed, `hint` is for the operator."""

    def __init__(self, op: str, cause: str, hint: str) -> None:
        super().__init__(f"{op}: {cause} ({hint})" if hint else f"{op}: {cause}")
        self.op = op
        self.cause = cause
        self.hint = hint


class BrokerRecord(msgspec.Struct, frozen=True):
    """`broker.json` as the guard writes it: the loopback port and both pids."""

    port: int
    pid: int
    guard_pid: int


class BrokerFolder:
    """Paths and files of one embedded broker."""

    def __init__(self, path: Path) -> None:
        """`path` is made absolute here, since guard and server run in another working directory."""
        self.path = path.absolute()
        self.election_lock = self.path / "election.lock"
        self.members_lock = self.path / "members.lock"
        self.guard_lock = self.path / "guard.lock"
        self.server_lock = self.path / "server.lock"
        self.record_file = self.path / "broker.json"
        self.token_file = self.path / "token"
        self.config_file = self.path / "nats.conf"
        self.log_file = self.path / "nats.log"
        self.ports_dir = self.path / "ports"

    def prepare(self) -> None:
        """Creates the folder with mode 0700; a BrokerError when it cannot be private."""
        hint = "name another folder with broker.directory, or make this one yours and writable"
        try:
            make_private_folder(self.path)
            state = self.path.stat()
            if state.st_uid != os.geteuid():
                raise BrokerError("prepare the broker's folder", f"{self.path} belongs to uid {state.st_uid}", hint)
            if state.st_mode & 0o077:
                self.path.chmod(0o700)
            self.ports_dir.mkdir(mode=0o700, exist_ok=True)
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise BrokerError("prepare the broker's folder", f"{self.path} is not writable", hint)
        except OSError as error:
            raise BrokerError("prepare the broker's folder", f"{self.path}: {error.strerror}", hint) from error

    def token(self) -> str:
        """The token all daemons of this user share; created at the first call, under the election lock."""
        with contextlib.suppress(FileNotFoundError):
            if self.token_file.stat().st_mode & 0o077:
                self.token_file.chmod(0o600)
            text = self.token_file.read_text(encoding="ascii", errors="replace").strip()
            if len(text) >= _MIN_TOKEN and text.isprintable():
                return text
        text = secrets.token_urlsafe(_TOKEN_BYTES)
        self._write(self.token_file, text + "\n")
        return text

    def write_config(self, token: str) -> None:
        """Writes `nats.conf`: loopback, the token, JetStream, no fixed port."""
        lines = {
            "server_name": "aghbus-embedded",
            "host": "127.0.0.1",
            "port": -1,
            "max_payload": MAX_PAYLOAD,
            "authorization": {"token": token},
            "jetstream": {
                "store_dir": str(self.path / "jetstream"),
                "max_memory_store": _MEMORY_STORE,
                "max_file_store": _FILE_STORE,
            },
            "log_file": str(self.log_file),
            "logfile_size_limit": _LOG_LIMIT,
            "logfile_max_num": 2,
            "ports_file_dir": str(self.ports_dir),
        }
        # JSON is a subset of the server's configuration language
        self._write(self.config_file, json.dumps(lines, indent=1, ensure_ascii=False) + "\n")

    def server_pid(self) -> int:
        """The pid written in server.lock; it names a living server only while that lock is held. 0 when there is none."""
        try:
            text = self.server_lock.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return 0
        return int(text) if text.isascii() and text.isdigit() else 0

    def record(self) -> BrokerRecord | None:
        """`broker.json` if it is complete and valid, else None: it is a hint, the locks are authoritative."""
        try:
            record = msgspec.json.decode(self.record_file.read_bytes(), type=BrokerRecord)
        except (OSError, msgspec.MsgspecError, ValueError):
            return None
        return record if 0 < record.port < 65536 else None

    def port_of(self, pid: int) -> int | None:
        """The port in nats-server's own ports file for `pid`; it serves when broker.json was lost."""
        for path in self.ports_dir.glob(f"*_{pid}.ports"):
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
                ports: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                return int(ports["nats"][0].rsplit(":", 1)[1])
        return None

    def _write(self, path: Path, text: str) -> None:
        """Atomically, with mode 0600 from the start."""
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(path)
