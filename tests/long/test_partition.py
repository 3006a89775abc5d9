"""Hosts in network namespaces: one daemon is cut off from the broker without anybody being told, works on, and comes back."""

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.crashes import seed_of, stop
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.ledger import balance
from tests.support.natsutil import NATS_SERVER
from tests.support.traffic import Traffic

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
    """Namespaces with names, each with one address, all on one switch (a namespace too). A context manager. Linux and root only.

    Addresses are in 10.203.0.0/24 and exist only inside these namespaces; the machine's own network is not touched.
    """

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

    def __exit__(self, *_: object) -> None:
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


pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PORT = 4222  # on a host of our own
QUICK = ("--retry-first", "100ms", "--retry-ceiling", "500ms")


class RemoteDaemon(Daemon):
    """An `aghd` on a host; its API is a Unix socket, which the file system carries across namespaces."""

    def __init__(self, hosts: Hosts, host: str, home: Home, *args: str) -> None:
        super().__init__(home, host, *args)
        self._prefix = hosts.command(host)

    def start(self, *, wait: bool = True) -> Self:
        command = [*self._prefix, sys.executable, "-m", "aghbus.daemon", "run", "--name", self.name, "--quiet"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.args], env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if wait:
            self.wait_ready()
        return self


@contextmanager
def broker_on(hosts: Hosts, host: str, folder: Path) -> Iterator[str]:
    """A nats-server with JetStream on a host, killed at the end; its URL."""
    command = [str(NATS_SERVER), "-a", hosts.address(host), "-p", str(PORT), "-js", "-sd", str(folder / "js")]
    with (folder / "nats.log").open("ab") as log:
        process = subprocess.Popen([*hosts.command(host), *command], stdout=log, stderr=log)
    try:
        yield f"nats://{hosts.address(host)}:{PORT}"
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.parametrize("profile", [(), ("--durability", "jetstream")], ids=["core", "jetstream"])
@pytest.mark.parametrize(("cut_off", "seconds"), [("worker", 10), ("ops", 10), ("worker", 60)])
async def test_a_partition_heals_and_everything_arrives(
    tmp_path: Path, cut_off: str, seconds: int, profile: tuple[str, ...]
) -> None:
    if reason := why_not():
        pytest.skip(reason)
    seed = seed_of("partition", cut_off, seconds, *profile)
    with Hosts("broker", "ops", "worker") as hosts, broker_on(hosts, "broker", tmp_path) as url:
        home = Home(tmp_path)
        args = ("--nats", url, *QUICK, *profile)
        pair = RemoteDaemon(hosts, "ops", home, *args), RemoteDaemon(hosts, "worker", home, *args)
        try:
            for daemon in pair:
                await asyncio.to_thread(daemon.start)
            figures = await asyncio.to_thread(cut_and_heal, hosts, pair, cut_off, seconds, seed)
            print(figures)
        finally:
            stop(pair)


def cut_and_heal(
    hosts: Hosts, pair: tuple[RemoteDaemon, RemoteDaemon], cut_off: str, seconds: float, seed: int
) -> dict[str, Any]:
    """Traffic before, meanwhile (both agents go on), and afterwards."""
    traffic = Traffic(*pair, seed, window=40)
    traffic.start()
    try:
        wait_for(lambda: traffic.handled >= 20, 60, "works before the cut")
        hosts.unplug(cut_off)
        began, sent = time.monotonic(), len(traffic.ledger.yes)
        wait_for(lambda: time.monotonic() - began >= seconds, seconds + 5, "the time of the partition")
        meanwhile = len(traffic.ledger.yes) - sent
        assert meanwhile > 0, "nobody said yes during the partition: nothing was shown"
        hosts.plug(cut_off)
        healed = time.monotonic()
        traffic.finish(at_least=100, timeout=180)
        figures = balance(traffic.ledger, *pair)
        return {**figures, "meanwhile": meanwhile, "at rest after": round(time.monotonic() - healed, 1)}
    finally:
        traffic.stop()
