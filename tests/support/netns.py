"""Network namespaces as hosts: a bridge of their own, one cable each, which a test can pull out. Linux and root only.

Addresses are in 10.203.0.0/24 and exist only inside these namespaces; the machine's own network is not touched, and everything
goes with the namespaces.
"""

import os
import secrets
import shutil
import subprocess
from types import TracebackType
from typing import Self

_NETWORK = "10.203.0"


def why_not() -> str | None:
    """Why this machine cannot make namespaces; None when it can."""
    if shutil.which("ip") is None:
        return "needs the command `ip` (iproute2)"
    name = f"agh{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"cannot make network namespaces here: {made.stderr.strip() or made.returncode}"
    cable = ["ip", "-n", name, "link", "add", "name", "end0", "type", "veth", "peer", "name", "end1"]
    wired = subprocess.run(cable, capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], check=False)
    return None if wired.returncode == 0 else f"cannot make veth pairs here: {wired.stderr.strip()}"


class Hosts:
    """Namespaces with names, each with one address, all on one switch (a namespace too). A context manager."""

    def __init__(self, *names: str) -> None:
        self._mark = f"agh{os.getpid() % 100_000}{secrets.token_hex(1)}"
        self._made: list[str] = []
        self._numbers = {name: number for number, name in enumerate(names, start=1)}

    def __enter__(self) -> Self:
        try:
            self._make("switch")
            self._ip("switch", "link", "add", "bridge", "type", "bridge")
            self._ip("switch", "link", "set", "bridge", "up")
            for name in self._numbers:
                self._plug(name)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def address(self, name: str) -> str:
        return f"{_NETWORK}.{self._numbers[name]}"

    def command(self, name: str) -> list[str]:
        """What to put in front of a command, so that it runs on that host; the process is replaced, not wrapped."""
        return ["ip", "netns", "exec", self._namespace(name)]

    def unplug(self, name: str) -> None:
        """Nothing comes or goes; neither side is told."""
        self._ip("switch", "link", "set", f"port{self._numbers[name]}", "down")

    def plug(self, name: str) -> None:
        """The cable is back."""
        self._ip("switch", "link", "set", f"port{self._numbers[name]}", "up")

    def _plug(self, name: str) -> None:
        self._make(name)
        port = f"port{self._numbers[name]}"
        other = self._namespace(name)
        self._ip("switch", "link", "add", port, "type", "veth", "peer", "name", "net0", "netns", other)
        self._ip("switch", "link", "set", port, "master", "bridge", "up")
        self._ip(name, "address", "add", f"{self.address(name)}/24", "dev", "net0")
        self._ip(name, "link", "set", "net0", "up")
        self._ip(name, "link", "set", "lo", "up")

    def _namespace(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _make(self, name: str) -> None:
        self._run("ip", "netns", "add", self._namespace(name))
        self._made.append(name)

    def _ip(self, name: str, *args: str) -> None:
        self._run("ip", "-n", self._namespace(name), *args)

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)

    def _remove(self) -> None:
        while self._made:
            subprocess.run(["ip", "netns", "delete", self._namespace(self._made.pop())], check=False)
