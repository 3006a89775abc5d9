"""The system unit as docs/operations.md and docs/backup.md describe it: their commands run by root under systemd as process 1."""

import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.daemons import wait_for
from tests.support.machine import Machine
from tests.support.natsutil import NatsServer

ROOT: Final = Path(__file__).parents[2]
STATE: Final = "/var/lib/aghbus/instances/worker"
SOCKET: Final = "/run/aghbus/worker/api.sock"
CONFIG: Final = 'trust.admit = "all"\nnats.servers = ["{url}"]\n'


def shown(page: str, after: str) -> list[tuple[str, str]]:
    """The commands of the first console block after the heading `after`, with the prompt (`#` is root's)."""
    text = (ROOT / "docs" / page).read_text("utf-8").partition(f"{after}\n")[2]
    block = re.findall(r"^```(?:console)?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[0]
    return [(line[0], line[2:].partition("  # ")[0]) for line in block.splitlines()]


def answer(machine: Machine, command: str, user: str = "root", env: Mapping[str, str] | None = None) -> Any:
    return json.loads(machine.run(f"{command} -o json", user=user, env=env).stdout)


def ready(machine: Machine) -> None:
    machine.run("aghctl --name worker wait --timeout 60")


def foreign_files(machine: Machine) -> str:
    """What in the state folder does not belong to the unit's user."""
    return machine.run(f"find {STATE} ! -user aghd-worker").stdout


def checkout() -> bytes:
    """The files of the repository in a tar file."""
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=True).stdout
    tar = ["tar", "-C", str(ROOT), "--null", "-T", "-", "-c"]
    return subprocess.run(tar, input=names, capture_output=True, check=True).stdout


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    """A machine with a checkout in /srv/aghbus, and a broker for it; the users `agent` and `outsider` have a home."""
    (tmp_path / "machine").mkdir()
    async with NatsServer() as broker:
        with Machine(tmp_path / "machine") as found:
            found.write("/srv/checkout.tar", checkout())
            found.run(
                "mkdir /srv/aghbus; tar -xf /srv/checkout.tar -C /srv/aghbus; useradd -m agent; useradd -m outsider"
            )
            found.write("/srv/aghbus/worker.toml", CONFIG.format(url=broker.url).encode())
            yield found


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_system_unit_as_documented(machine: Machine) -> None:
    pip = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    for prompt, command in shown("operations.md", "### systemd"):
        if prompt == "$":
            ready(machine)
        machine.run(f"cd /srv/aghbus; {command}", user="root" if prompt == "#" else "agent", env=pip)

    _found_by_root_and_the_group(machine)
    _backed_up_and_restored(machine)
    _key_belongs_to_the_unit(machine)
    _broken_configuration(machine)
    _same_name_of_two_owners(machine)
    _user_unit(machine)

    machine.run("systemctl stop aghd@worker")
    refused = machine.run("aghctl instances rm worker", check=False)
    assert "private key" in refused.stderr
    machine.run("aghctl instances rm worker --with-key")
    assert answer(machine, "aghctl instances list") == {"v": 1, "instances": []}


def _found_by_root_and_the_group(machine: Machine) -> None:
    for user in ("root", "agent"):
        (found,) = answer(machine, "aghctl instances list", user)["instances"]
        assert (found["name"], found["running"], found["state_dir"]) == ("worker", True, STATE)
        assert answer(machine, "aghctl status", user)["name"] == "worker"  # the only one that runs
    assert answer(machine, "aghctl instances list", "outsider")["instances"] == []
    refused = machine.run("aghctl --name worker status", user="outsider", check=False)
    assert "may not use the daemon worker of the system" in refused.stderr
    assert "group aghd-worker" in refused.stderr
    for words in ("", "--name worker ", f"--socket {SOCKET} "):
        checks = {row["check"]: row for row in answer(machine, f"aghctl {words}doctor")["checks"]}
        assert checks["configuration"]["state"] == "ok", words
        assert checks["store commits"]["state"] == "ok"
        assert {row["instance"] for row in checks.values() if "instance" in row} == {"worker"}
    checks = {row["check"]: row for row in answer(machine, "aghctl doctor", "agent")["checks"]}
    assert [checks[name]["state"] for name in ("configuration", "store file", "daemon")] == ["warn", "warn", "ok"]


def _backed_up_and_restored(machine: Machine) -> None:
    machine.run("aghctl --name worker backup /var/backups/worker/; aghd restore --verify /var/backups/worker/")
    machine.run("aghd check-store --name worker")
    for heading in ("## Scheduled backups", "### Restore under systemd"):
        for _, command in shown("backup.md", heading):
            machine.run(f"cd /srv/aghbus; {command}")
    assert foreign_files(machine) == ""
    ready(machine)
    assert answer(machine, "aghctl --name worker status")["restored"] is not None
    machine.run(
        "systemctl stop aghd@worker; aghd check-store --name worker --rebuild-indexes; systemctl start aghd@worker"
    )
    assert foreign_files(machine) == ""
    ready(machine)


def _key_belongs_to_the_unit(machine: Machine) -> None:
    handle = answer(machine, "aghctl --name worker key generate")["handle"]
    assert foreign_files(machine) == ""
    machine.run("systemctl restart aghd@worker")
    ready(machine)
    assert answer(machine, "aghctl --name worker status")["peer_id"] == handle
    machine.run("aghctl --name worker key show; aghd config check --name worker")
    machine.run("aghctl --name worker key rotate")
    assert foreign_files(machine) == ""
    machine.run("systemctl restart aghd@worker")
    ready(machine)


def _broken_configuration(machine: Machine) -> None:
    pid = answer(machine, "aghctl --name worker status")["pid"]
    machine.run("cp /etc/aghbus/worker.toml /root/good.toml")
    machine.run("sed -i '1i durability = 3' /etc/aghbus/worker.toml")
    checked = machine.run("aghd config check --name worker", check=False)
    assert checked.returncode == 2 and "/etc/aghbus/worker.toml" in checked.stderr
    assert machine.run("systemctl reload aghd@worker", check=False).returncode != 0
    assert answer(machine, "aghctl --name worker status")["pid"] == pid
    assert machine.run("systemctl restart aghd@worker", check=False).returncode != 0
    wait_for(lambda: _property(machine, "ActiveState") == "failed", 60, "the unit to be failed")
    assert (_property(machine, "NRestarts"), _property(machine, "ExecMainStatus")) == ("0", "2")
    stopped = machine.run("aghctl --name worker status", check=False)
    assert "systemctl start aghd@worker" in stopped.stderr
    machine.run("cp /root/good.toml /etc/aghbus/worker.toml; systemctl start aghd@worker")
    ready(machine)
    machine.run("systemctl reload aghd@worker")


def _property(machine: Machine, name: str) -> str:
    return machine.run(f"systemctl show --property={name} --value aghd@worker").stdout.strip()


def _same_name_of_two_owners(machine: Machine) -> None:
    machine.run("mkdir -p -m 0700 /root/.local/state/aghbus/instances/worker")
    for command in ("aghctl --name worker status", "aghctl --name worker backup /tmp/which.db"):
        refused = machine.run(command, check=False)
        assert refused.returncode == 2
        assert STATE in refused.stderr and "/root/.local/state/aghbus/instances/worker" in refused.stderr
    assert machine.run("aghd check-store --name worker", check=False).returncode == 2
    assert answer(machine, f"aghctl --socket {SOCKET} status")["name"] == "worker"
    machine.run(f"aghctl --socket {SOCKET} backup /tmp/which.db; aghd check-store --name worker --api-socket {SOCKET}")
    machine.run("rmdir /root/.local/state/aghbus/instances/worker")


def _user_unit(machine: Machine) -> None:
    """The unit of a user, by the commands at its beginning, with an embedded broker."""
    machine.run("systemctl start dbus systemd-logind; loginctl enable-linger agent")
    unit = "/home/agent/.config/systemd/user/aghd@.service"
    machine.write(unit, (ROOT / "deploy/systemd/user/aghd@.service").read_bytes())
    machine.run(
        "mkdir -p /home/agent/.local/bin; ln -s /opt/aghbus/bin/* /home/agent/.local/bin/; chown -R agent: /home/agent"
    )
    uid = machine.run("id -u agent").stdout.strip()
    wait_for(
        lambda: machine.run(f"test -S /run/user/{uid}/systemd/private", check=False).returncode == 0, 60, "the manager"
    )
    env = {"XDG_RUNTIME_DIR": f"/run/user/{uid}"}
    (command,) = re.findall(r"^#   (.+)$", machine.run(f"cat {unit}").stdout, re.MULTILINE)
    machine.run(command, user="agent", env=env)
    machine.run("aghctl --name ops wait --timeout 60; aghctl --name ops doctor", user="agent", env=env)
    listed = answer(machine, "aghctl instances list", "agent", env)["instances"]
    assert [one["name"] for one in listed] == ["ops", "worker"]
    machine.run("systemctl --user stop aghd@ops", user="agent", env=env)
