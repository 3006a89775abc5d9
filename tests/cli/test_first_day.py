"""What a new user meets on the first day: the banner, doctor, instances, and errors that name their rule."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aghbus.daemon.state.catalog import load_catalog
from tests.support.daemons import Daemon, Home
from tests.support.natsutil import NatsServer

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home in which `ops` and `worker` run."""
    home = Home(tmp_path_factory.mktemp("two"))
    with Daemon(home, "worker"), Daemon(home, "ops"):
        yield home


def banner(home: Home, *args: str) -> str:
    command = [sys.executable, "-m", "aghbus.daemon", "run", *args]
    with subprocess.Popen(command, env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        try:
            shown = "".join(iter(daemon.stdout.readline, "Ctrl-C stops this one.\n"))
        finally:
            daemon.terminate()
    return shown.replace("python -m aghbus.daemon", "aghd")


@pytest.mark.parametrize(("name", "other"), [("ops", "patch-worker"), ("patch-worker", "ops")])
def test_the_banner_names_another_peer(home: Home, name: str, other: str) -> None:
    shown = banner(home, "--name", name)
    assert re.findall(r"aghd run --name (\S+)", shown) == [other] and " requests " not in shown


@pytest.mark.parametrize("admit", ["contacts", "all"])
def test_the_banner_names_admission_where_it_is_needed(home: Home, server: NatsServer, admit: str) -> None:
    shown = banner(home, "--name", "ops", "--nats", server.url, "--trust-admit", admit)
    assert ("--name ops requests " in shown) == (admit == "contacts")


def test_doctor_checks_every_running_daemon(two: Home) -> None:
    done = two.ctl("doctor")
    assert done.returncode == 0, done.stdout
    assert b"ops: daemon: ops, pid" in done.stdout and b"worker: daemon: worker, pid" in done.stdout
    checks = two.ctl_json("doctor")["checks"]
    assert {check.get("instance") for check in checks} == {None, "ops", "worker"}
    assert {
        check["instance"] for check in two.ctl_json("--name", "ops", "doctor")["checks"] if "instance" in check
    } == {"ops"}


@pytest.mark.parametrize("content", [b"\xff\xfe\x00binary", b"a\x00b"])
def test_binary_standard_input_is_called_that(two: Home, content: bytes) -> None:
    done = two.ctl("--name", "ops", "say", "-", "--to", "worker", stdin=content)
    assert (done.returncode, b"binary" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "command",
    [["say", "x", "--to"], ["say", "x", "--direct"], ["work", "open", "--text", "x", "--to"], ["whois", "--to"]],
)
def test_the_rule_of_a_bad_peer_id_is_named(two: Home, command: list[str]) -> None:
    done = two.ctl("--name", "ops", *command, "Bad Peer")
    assert done.returncode == 2
    assert b"must be a peer id (1 to 128 of a-z, 0-9" in done.stderr


@pytest.mark.parametrize(("option", "meant"), [("--nope", "--name"), ("--capabilty", "--capability")])
def test_an_unknown_option_of_the_daemon_gets_a_suggestion(home: Home, option: str, meant: str) -> None:
    command = [sys.executable, "-m", "aghbus.daemon", "run", option]
    done = subprocess.run(command, env=home.env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, f"did you mean {meant}?" in done.stderr) == (2, True)


def test_instances_are_listed_and_removed(home: Home) -> None:
    with Daemon(home, "ops"), Daemon(home, "old"):
        pass
    with Daemon(home, "ops"):
        found = {one["name"]: one["running"] for one in home.ctl_json("instances", "list")["instances"]}
        assert found == {"ops": True, "old": False}
        running = home.ctl("instances", "rm", "ops")
        assert (running.returncode, b"is running" in running.stderr) == (1, True)
        assert home.ctl_json("instances", "rm", "old")["removed"] == "old"
        assert home.ctl("--name", "ops", "status").returncode == 0
    assert [one["name"] for one in home.ctl_json("instances", "list")["instances"]] == ["ops"]
    assert home.ctl("instances", "rm", "old").returncode == 4
    assert home.ctl("instances", "rm", "../ops").returncode == 2


def test_instance_size_includes_data_not_yet_in_the_main_file(two: Home) -> None:
    (ops,) = [one for one in two.ctl_json("instances", "list")["instances"] if one["name"] == "ops"]
    stored = two.root / "state" / "aghbus" / "instances" / "ops" / "store.db"
    assert ops["bytes"] > stored.stat().st_size
    assert ops["changed_ms"] >= stored.stat().st_mtime_ns // 1_000_000


def test_an_instance_with_a_key_is_removed_only_on_request(home: Home) -> None:
    assert home.ctl("--name", "keyed", "key", "generate").returncode == 0
    folder = home.root / "state" / "aghbus" / "instances" / "keyed"
    refused = home.ctl("instances", "rm", "keyed", "-o", "json")
    assert (refused.returncode, "--with-key" in json.loads(refused.stderr)["hint"]) == (1, True)
    assert folder.exists()
    assert home.ctl("instances", "rm", "keyed", "--with-key").returncode == 0
    assert not folder.exists()


def test_the_catalog_of_the_manual_is_valid(tmp_path: Path) -> None:
    manual = (REPOSITORY / "docs" / "configuration.md").read_text()
    (example,) = re.findall(r"```toml\n(# ~/.config/aghbus/capabilities.toml\n.*?)```", manual, re.DOTALL)
    (tmp_path / "capabilities.toml").write_text(example)
    (record,) = load_catalog(str(tmp_path / "capabilities.toml")).records
    assert record.id == "test.run"
