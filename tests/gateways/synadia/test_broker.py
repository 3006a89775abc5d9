"""The bridge's connection: permissions and signatures on a broker with users, and the daemon's own login."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped] # the package has no types
import pytest
from nats.aio.client import Client as NatsClient
from synadia_ai.agent_service import PromptStream
from synadia_ai.agents import Agent, Agents, Envelope, Identity, NkeySigner, resolve_nats_connection_bundle

from tests.support.daemons import ADMIT_ALL, Daemon, Home, wait_for
from tests.support.natsutil import NatsServer
from tests.support.synadia import bridge, connected, hosting, in_thread, prompted

USERS = """
authorization {{ users: [
  {{ user: ops, password: secret, permissions: $agh_ops }}
  {{ user: worker, password: secret, permissions: $agh_worker }}
  {{ nkey: {serve}, permissions: $agh_synadia_serve }}
  {{ nkey: {join}, permissions: $agh_synadia_join }}
  {{ nkey: {other} }}
] }}
"""


def nkey(path: Path, number: int) -> tuple[str, str]:
    """The file of a user's seed, and the public key."""
    seed = nkeys.encode_seed(bytes(range(number, number + 32)), nkeys.PREFIX_BYTE_USER)
    path.write_bytes(seed)
    path.chmod(0o600)
    return str(path), nkeys.from_seed(bytearray(seed)).public_key.decode()


class Guarded:
    """A broker on which each user may do what `aghctl nats permissions` says; `other` is a client and host of theirs."""

    def __init__(self, home: Home) -> None:
        self.files: dict[str, str] = {}
        self.keys: dict[str, str] = {}
        for number, name in enumerate(("serve", "join", "other")):
            self.files[name], self.keys[name] = nkey(home.root / f"{name}.nk", number)
        words = ("--peer", "ops", "--peer", "worker", "--synadia", "serve", "--synadia", "join")
        permissions = home.ctl("nats", "permissions", *words, "--format", "server-conf").stdout.decode()
        self.server = NatsServer(config=permissions + USERS.format(**self.keys))

    def bridge(self, name: str) -> tuple[str, ...]:
        return ("--nats", self.server.url, "--creds", self.files[name], "--sign")

    def daemon(self, home: Home, name: str) -> Daemon:
        environment = {"AGHD_NATS_USER": name, "AGHD_NATS_PASSWORD": "secret"}
        return Daemon(home, name, "--nats", self.server.url, *ADMIT_ALL, env=environment)

    @contextlib.asynccontextmanager
    async def other(self) -> AsyncIterator[tuple[NatsClient, NkeySigner]]:
        bundle = resolve_nats_connection_bundle(url=self.server.url, nkey=self.files["other"], identity="signed")
        async with connected(dict(bundle.connection_options)) as client:
            yield client, bundle.signer


async def test_permissions_suffice_and_the_signer_of_a_prompt_is_its_principal(home: Home) -> None:
    guarded = Guarded(home)

    async def on_prompt(envelope: Envelope, stream: PromptStream) -> None:
        sender = stream.sender
        await stream.send(f"{envelope.prompt} by {sender and sender.header.user}")

    async with (
        guarded.server,
        guarded.other() as (client, signer),
        hosting(client, "echo", on_prompt, min_sender_trust="signed"),
    ):
        with guarded.daemon(home, "ops") as ops, guarded.daemon(home, "worker") as worker:
            await in_thread(lambda: wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence"))
            serve = ("serve", "--capability", "synadia.echo", "--signed-only", *guarded.bridge("serve"))
            with (
                bridge(home, "worker", "join", *guarded.bridge("join")) as join,
                bridge(home, "ops", *serve),
            ):
                await in_thread(lambda: join.until("announced", capability="synadia.echo"))
                got = await prompt_echo(client, Identity(signer=signer))
                refused = await prompt_echo(client, None)
                assert join.stop() == 0
            log = guarded.server.log
            opening = ops.get(f"/v1/messages?work={got.work_id}")["messages"][0]["envelope"]
    assert got.text.endswith(f"hello by {guarded.keys['join']}")
    assert opening["ext"]["aghbus.principal"] == {"name": guarded.keys["other"], "via": "synadia"}
    assert refused == "requires a signed header"
    assert "Permissions Violation" not in log


async def prompt_echo(client: NatsClient, identity: Identity | None) -> Any:
    """The response of the agent that stands for the capability synadia.echo."""
    agents = Agents(nc=client, identity=identity)
    try:
        there: list[Agent] = []
        for _ in range(100):  # it answers later than the others when it is busy
            there = [each for each in await agents.discover() if each.agent == "aghbus-capability"]
            if there:
                break
        (found,) = there
        if identity is None:
            with pytest.raises(Exception, match="requires a signed Agent-Sender header"):
                await prompted(found, "hello")
            return "requires a signed header"
        assert found.id_sig_verified
        return await prompted(found, "hello")
    finally:
        await agents.close()


async def test_without_options_the_bridge_logs_in_as_the_daemon_is_configured(home: Home) -> None:
    config = home.root / "config" / "aghbus"
    config.mkdir(parents=True)
    (config / "password").write_text("secret\n")
    (config / "password").chmod(0o600)
    async with NatsServer(config='authorization { user: ops, password: "secret" }') as server:
        lines = [
            f'nats.servers = ["{server.url}"]',
            'nats.user = "ops"',
            f'nats.password_file = "{config / "password"}"',
        ]
        (config / "ops.toml").write_text("\n".join(lines))
        with Daemon(home, "ops"), bridge(home, "ops", "serve", "--peer", "worker") as process:
            assert process.until("ready")["agents"] == ["aghbus/ws_local/worker"]
            refused = home.ctl("--name", "ops", "bridge", "synadia", "serve", "--nats", server.url)
            assert process.stop() == 0
    assert refused.returncode == 3
    assert b"hint: name the server with --nats URL, and its credentials with --creds FILE" in refused.stderr
