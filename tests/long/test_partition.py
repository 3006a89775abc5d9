"""Hosts in network namespaces: one daemon is cut off from the broker without anybody being told, works on, and comes back."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support import netns
from tests.support.crashes import seed_of, stop
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.ledger import balance
from tests.support.natsutil import NATS_SERVER
from tests.support.netns import Hosts
from tests.support.traffic import Traffic

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
    if reason := netns.why_not():
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
