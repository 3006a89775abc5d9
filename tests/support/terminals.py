"""Programs that draw on a terminal, run on a pseudo-terminal of their own."""

import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_ANSWERS: Final = {b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?1;2c"}
"""Questions of a program to its terminal, which it waits for: where the cursor is, and which terminal this is."""


class TerminalProgram:
    """A program that runs from entry to exit. What it draws is read all the time, and kept in `shown`."""

    def __init__(self, command: list[str], env: dict[str, str], folder: Path) -> None:
        self._command = command
        self._env = {**env, "TERM": "xterm-256color"}
        self._folder = folder
        self.shown = b""

    def __enter__(self) -> Self:
        self._process, self._terminal = pty.fork()
        if self._process == 0:
            os.chdir(self._folder)
            os.execvpe(self._command[0], self._command, self._env)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.kill(self._process, signal.SIGTERM)
        os.waitpid(self._process, 0)
        self._reader.join()
        os.close(self._terminal)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the program ended
            while read := os.read(self._terminal, 65536):
                self.shown += read
                for question, answer in _ANSWERS.items():
                    os.write(self._terminal, answer * read.count(question))
