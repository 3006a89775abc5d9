"""Shells on a pseudo-terminal, as a person uses them."""

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
