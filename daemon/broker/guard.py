"""The guard: a small process that starts the embedded broker, and stops it when the last daemon has left.

Run by path, `python -I -S guard.py FOLDER start BINARY PORT` or `… FOLDER adopt`; standard library only, so that it stays small.
It prints one JSON line to the starter, `{"port": N, "pid": N}` or `{"error": text}`, and continues in a detached child.

Each daemon holds `members.lock` shared for its life; the guard stops the server once it can take that lock exclusively.
`guard.lock` is held by the one guard. `server.lock` is inherited by nats-server and so held for exactly its life; its text is the
pid, written before the exec and emptied before the next start, so that a held lock never names another process.

PR_SET_PDEATHSIG is not used: it would make the death of a guard an outage for all daemons.
"""

# pathlib would be the guard's largest import, so:
# ruff: noqa: PTH105, PTH108, PTH116, PTH118, PTH123, PTH208

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time

_POLL = 0.2  # seconds between two checks of members.lock: how long a broker outlives its last daemon, at most
_LOCK_WAIT = 5.0  # seconds for another guard, or a probe of the lock, to let go
_START_WAIT = 15.0  # seconds for nats-server to listen; a JetStream folder with much in it is read first
_TERM_WAIT = 5.0  # seconds between SIGTERM and SIGKILL
_TAIL = 2000  # bytes of the server's log that an error repeats
_LARGEST_FD = 4096  # of those that a starter may have open when it forks


class _GuardError(Exception):
    """A start that failed; its text goes to the starter."""


class _Guard:
    """One guard: the folder, its locks and the server under it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._pid = 0
        self._is_child = False
        self._stop = False
        self._wake, wake_write = os.pipe()
        for end in (self._wake, wake_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGCHLD, lambda _signo, _frame: None)  # only to wake the loop immediately
        for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)
        self._members = self._open("members.lock")
        self._guard = self._open("guard.lock")
        self._server = self._open("server.lock")

    def start(self, binary: str, port: int) -> int:
        """Starts the server, on `port` if that is free and else on any; returns the port it listens on."""
        self._take(self._guard, "another guard is running")
        self._take(self._server, "another server is running")
        for leftover in os.listdir(self._path("ports")):
            os.unlink(self._path("ports", leftover))
        for attempt in (port, -1) if port > 0 else (-1,):
            self._spawn(binary, attempt)
            listening = self._await_port()
            if listening is not None:
                self._release_server_lock()
                self._write_record(listening)
                return listening
        raise _GuardError("nats-server ended at its start: " + self._log_tail())

    def adopt(self) -> int:
        """Takes over a server whose guard has died; returns its port."""
        self._take(self._guard, "another guard is running")
        self._pid = self._locked_pid()
        listening = self._await_port() if self._pid else None
        if listening is None:
            raise _GuardError("there is no server to adopt")
        self._write_record(listening)
        return listening

    def watch(self) -> None:
        """Returns when the server is gone: it exited, on SIGTERM to the guard, or because no member is left."""
        while not self._server_gone():
            if self._stop or self._folder_replaced() or self._try(self._members):
                self.stop_server()
                break
            select.select([self._wake], [], [], _POLL)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 512)
        self._remove_record()

    def stop_server(self) -> None:
        """SIGTERM, and SIGKILL after five seconds; safe when there is no server."""
        for signo, wait in ((signal.SIGTERM, _TERM_WAIT), (signal.SIGKILL, _TERM_WAIT)):
            if self._server_gone():
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signo)
            deadline = time.monotonic() + wait
            while not self._server_gone() and time.monotonic() < deadline:
                time.sleep(0.02)

    def _on_term(self, _signo: int, _frame: object) -> None:
        self._stop = True

    def _path(self, *names: str) -> str:
        return os.path.join(self._folder, *names)

    def _open(self, name: str) -> int:
        return os.open(self._path(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @staticmethod
    def _try(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _take(self, fd: int, refusal: str) -> None:
        deadline = time.monotonic() + _LOCK_WAIT
        while not self._try(fd):
            if time.monotonic() > deadline:
                raise _GuardError(refusal)
            time.sleep(0.01)

    def _spawn(self, binary: str, port: int) -> None:
        """fork and exec by hand: the subprocess module would double the guard's memory."""
        os.ftruncate(self._server, 0)
        pid = os.fork()
        if pid == 0:
            try:
                os.pwrite(
                    self._server, str(os.getpid()).encode(), 0
                )  # by the child: no server lives without its pid there
                _redirect(self._path("server.err"))
                os.set_inheritable(self._server, True)
                for signo in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
                    signal.signal(signo, signal.SIG_DFL)
                os.execv(binary, [binary, "-c", self._path("nats.conf"), "-p", str(port)])  # noqa: S606
            except OSError as error:
                os.write(2, f"{binary}: {error}\n".encode())
            finally:
                os._exit(127)
        self._pid, self._is_child = pid, True

    def _release_server_lock(self) -> None:
        """Closes our descriptor, so that only the server's descriptor keeps the lock; reopened for checks."""
        os.close(self._server)
        self._server = self._open("server.lock")

    def _await_port(self) -> int | None:
        deadline = time.monotonic() + _START_WAIT
        while time.monotonic() < deadline:
            if self._server_gone():
                return None
            if (listening := self._read_port()) is not None:
                return listening
            if self._stop:
                raise _GuardError("stopped while starting")
            time.sleep(0.01)
        raise _GuardError(f"nats-server does not listen after {_START_WAIT:.0f} s: " + self._log_tail())

    def _read_port(self) -> int | None:
        """The port from nats-server's own ports file, `<executable>_<pid>.ports`; None until it is written whole."""
        for name in os.listdir(self._path("ports")):
            if name.endswith(f"_{self._pid}.ports"):
                with (
                    contextlib.suppress(ValueError, KeyError, IndexError, OSError),
                    open(self._path("ports", name), encoding="utf-8") as file,
                ):
                    return int(json.load(file)["nats"][0].rsplit(":", 1)[1])
        return None

    def _server_gone(self) -> bool:
        """A child is waited for (and so reaped), an adopted server is known by its lock."""
        if self._pid == 0:
            return True
        gone = os.waitpid(self._pid, os.WNOHANG) != (0, 0) if self._is_child else self._locked_pid() != self._pid
        if gone:
            self._pid = 0
        return gone

    def _locked_pid(self) -> int:
        """The pid in server.lock if a server holds the lock, else 0."""
        try:
            fcntl.flock(self._server, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(self._server, 32, 0)
            return int(text) if text.isdigit() else 0
        fcntl.flock(self._server, fcntl.LOCK_UN)
        return 0

    def _folder_replaced(self) -> bool:
        """Whether members.lock is no longer the file that we hold open: then no daemon can find this broker again."""
        try:
            return not os.path.samestat(os.fstat(self._members), os.stat(self._path("members.lock")))
        except OSError:
            return True

    def _write_record(self, port: int) -> None:
        record = {"port": port, "pid": self._pid, "guard_pid": os.getpid()}
        fresh = self._path(f"broker.json.{os.getpid()}")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, json.dumps(record).encode())
        finally:
            os.close(fd)
        os.replace(fresh, self._path("broker.json"))

    def _remove_record(self) -> None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            with open(self._path("broker.json"), encoding="utf-8") as file:
                ours = json.load(file)["guard_pid"] == os.getpid()
            if ours:
                os.unlink(self._path("broker.json"))

    def _log_tail(self) -> str:
        text = b""
        for name in ("server.err", "nats.log"):
            with contextlib.suppress(OSError), open(self._path(name), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                text += file.read(_TAIL)
        lines = [line for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:]) or "the log is empty"


def _redirect(error_file: str) -> None:
    """Standard input is empty; output goes to `error_file`, emptied first."""
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open(error_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(null, 0)
    os.dup2(errors, 1)
    os.dup2(errors, 2)


def _serve(arguments: list[str], report: int) -> None:
    """The detached child: starts or adopts the server, reports to the starter through `report`, and watches."""
    os.chdir("/")  # keeps no folder of the starter in use
    os.umask(0o077)  # nats-server's log and streams are the user's own
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    guard: _Guard | None = None
    try:
        guard = _Guard(arguments[0])
        port = guard.adopt() if arguments[1] == "adopt" else guard.start(arguments[2], int(arguments[3]))
        answer: dict[str, object] = {"port": port, "pid": os.getpid()}
    except (_GuardError, OSError) as error:
        if guard is not None:
            guard.stop_server()
        answer = {"error": str(error)}
    with contextlib.suppress(OSError):
        os.write(report, json.dumps(answer).encode() + b"\n")
    os.close(report)
    if guard is not None and "port" in answer:
        guard.watch()


def main(arguments: list[str]) -> int:
    """Forks the guard, copies its one line to standard output, and returns 0 if the broker runs, else 1."""
    os.closerange(3, _LARGEST_FD)  # inherited descriptors, whose end the starter's parent could wait for
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.close(read_end)
        try:
            _serve(arguments, write_end)
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as answer:
        line = answer.readline()
    sys.stdout.write(line.decode() or '{"error": "guard process exited unexpectedly"}\n')
    return 0 if b'"port"' in line else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
