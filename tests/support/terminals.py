"""Shells, and programs that draw, on a pseudo-terminal, as a person uses them."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Final, Self

_ANSWERS: Final = {b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?1;2c"}
"""Questions of a program to its terminal, which it waits for: where the cursor is, and which terminal this is."""


class TerminalProgram:
    """A program that runs from entry to exit. What it draws is read all the time, and kept in `shown`."""

    def __init__(
        self, command: list[str], env: dict[str, str], folder: Path, *, rows: int = 40, columns: int = 120
    ) -> None:
        self._command = command
        self._size = struct.pack("HHHH", rows, columns, 0, 0)
        self._env = {**env, "TERM": "xterm-256color"}
        self._folder = folder
        self.shown = b""

    def __enter__(self) -> Self:
        self._process, self._terminal = pty.fork()
        if self._process == 0:
            os.chdir(self._folder)
            os.execvpe(self._command[0], self._command, self._env)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, self._size)
        self._code: int | None = None
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._code is None:
            os.kill(self._process, signal.SIGTERM)
            os.waitpid(self._process, 0)
        self._reader.join()
        os.close(self._terminal)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, text: str) -> str:
        """All that was drawn, once `text` is in it; AssertionError when it does not come."""
        deadline = time.monotonic() + STEP_SECONDS
        while text.encode() not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} was never drawn, but {self.shown!r}"
            time.sleep(0.01)
        return self.shown.decode(errors="replace")

    def wait(self) -> int:
        """The exit code of the program, which ends by itself or by what was typed."""
        self._code = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
        self._reader.join()
        return self._code

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the program ended
            while read := os.read(self._terminal, 65536):
                self.shown += read
                for question, answer in _ANSWERS.items():
                    os.write(self._terminal, answer * read.count(question))


STEP_SECONDS = 30.0


def shell_env(home: Path) -> dict[str, str]:
    """An environment in which a shell finds the programs under test, and nothing of the person who runs the tests."""
    programs = Path(sys.executable).parent
    return {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home), "PS1": "$ ", "TERM": "dumb"}


class InteractiveShell:
    """A shell that reads what `type` writes."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.execvpe(command[0], command, env)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.terminal)

    def type(self, text: str, until: str) -> str:
        """Write `text`, and read until the shell has shown `until`, which is returned with all before it; AssertionError
        when it does not come."""
        os.write(self.terminal, text.encode())
        shown, deadline = b"", time.monotonic() + STEP_SECONDS
        while until.encode() not in shown:
            ready = select.select([self.terminal], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"after {text!r} the shell never showed {until!r}, but {shown!r}"
            shown += os.read(self.terminal, 4096)
        return shown.decode(errors="replace")
