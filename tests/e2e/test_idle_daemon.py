"""Modules that a daemon loads before it has anything to do: each takes memory of every idle daemon (docs/performance.md)."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.daemons import Daemon, Home
from tests.support.natsutil import NatsServer

LATER: Final = {
    "aghbus.daemon.api.openapi": "the route of the document",
    "aghbus.daemon.broker.embedded": "the embedded broker",
    "aghbus.daemon.health.server": "a listener of probes",
    "aghbus.daemon.jetstream.profile": "the JetStream profile",
    "aghbus.daemon.mcp.endpoint": "an agent host",
    "argparse": "help",
    "cryptography": "a private key",
    "nacl": "a signature",
    "tomllib": "a configuration file",
}
"""What needs each module first. None of it happens here."""


def imported(daemon: Daemon) -> set[str]:
    """What `daemon` imports from its start until it is ready."""
    command = [sys.executable, "-X", "importtime", "-m", "aghbus.daemon", "run", "--name", daemon.name, "--quiet"]
    with daemon.log.open("wb") as log:
        daemon.process = subprocess.Popen([*command, *daemon.args], env=daemon.env, stdout=log, stderr=log)
    try:
        daemon.wait_ready()
        return set(re.findall(r"^import time:.*\| +(\S+)$", daemon.log.read_text(), re.MULTILINE))
    finally:
        assert daemon.stop() == 0


async def test_an_idle_daemon_has_not_loaded_what_it_does_not_need(tmp_path: Path) -> None:
    async with NatsServer() as server:
        loaded = imported(Daemon(Home(tmp_path), "ops", "--nats", server.url))
    assert {"aghbus.daemon.node", "nats.aio.client", "asyncio"} <= loaded
    assert {module: LATER[module] for module in LATER.keys() & loaded} == {}
