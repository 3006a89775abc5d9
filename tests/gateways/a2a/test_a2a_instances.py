"""`aghctl instances rm` removes what workers, bridges and gateways keep, and nothing that is in use."""

import contextlib
import json
from pathlib import Path

import pytest

from tests.support.a2a_gateway import serving_a2a
from tests.support.daemons import Daemon, Home
from tests.support.joining import agent
from tests.support.serving import EventsProcess

CLIENTS = {
    "serve": ("serve", "--capability", "test.run", "-o", "jsonl", "--", "true"),
    "bridge-sentient": ("bridge", "sentient", "-o", "jsonl", "--every", "1h", "--", "true"),
    "bridge-synadia": ("bridge", "synadia", "join", "-o", "jsonl"),
    "a2a-join": ("a2a", "join", "-o", "jsonl"),
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_an_instance_goes_with_the_state_of_its_clients(kind: str, tmp_path: Path) -> None:
    home, words = Home(tmp_path), CLIENTS[kind]
    clients = tmp_path / "state" / "aghbus" / "clients"
    with contextlib.ExitStack() as stack:
        if kind == "a2a-join":
            words = (*words, stack.enter_context(agent(tmp_path / "agent")).url)
        with Daemon(home, "ops", "--capability", "test.run"):
            client = EventsProcess(home, tmp_path, "--name", "ops", *words)
            stack.callback(client.close)
            client.until("ready")
        assert (clients / "ops" / kind).is_dir()
        refused = home.ctl("instances", "rm", "ops", "-o", "json")
        assert (refused.returncode, "aghctl serve, bridge and a2a" in json.loads(refused.stderr)["hint"]) == (1, True)
        assert (clients / "ops" / kind).is_dir()
    (clients / f"ops.{kind}" / "serve").mkdir(parents=True)  # of another instance
    removed = home.ctl("instances", "rm", "ops")
    instance = tmp_path / "state" / "aghbus" / "instances" / "ops"
    assert removed.stdout.decode().splitlines() == [f"removed {instance}", f"removed {clients / 'ops'}"]
    assert (instance.exists(), [each.name for each in clients.iterdir()]) == (False, [f"ops.{kind}"])
    assert home.ctl("instances", "rm", "ops").returncode == 4


def test_the_key_of_a_gateway_is_removed_only_on_request(tmp_path: Path) -> None:
    home = Home(tmp_path)
    folder = tmp_path / "state" / "aghbus" / "clients" / "ops"
    with Daemon(home, "ops"):
        with serving_a2a(home, "--listen", "127.0.0.1:0", "--peer", "ops", "--push-allow", "example.com"):
            pass
        assert (folder / "a2a-serve" / "push.lock").exists()
    refused = home.ctl("instances", "rm", "ops", "-o", "json")
    assert (refused.returncode, "--with-key" in json.loads(refused.stderr)["hint"]) == (1, True)
    assert (folder / "a2a-serve" / "card-key.pem").exists()
    assert home.ctl("instances", "rm", "ops", "--with-key").returncode == 0
    assert not folder.exists()
