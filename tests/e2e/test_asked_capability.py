"""One rule for what a work asks for: each way to ask, and each kind of worker that serves several capabilities."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from aghbus.client import Client, Endpoint
from tests.support.chain_agents import begin, chain, reach
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.mcp_client import McpClient

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="serve needs Linux")

SERVED: Final = ("test.run", "lint")
"""The second one has no dot: as an intent it names a capability because the daemon announces it."""
PYTHON: Final = """
import sys
from aghbus.client import Client, Endpoint, Job, Worker
kind, path, *served = sys.argv[1:]
endpoint = Endpoint(path=path)
if kind == "worker":
    worker = Worker(endpoint)
    for one in served:
        worker.capability(one)(lambda job, one=one: one)
    worker.run()
else:
    for job in Client(endpoint).jobs(served[0]):
        job.complete(served[0])
"""
ANSWER: Final = (
    """import json, sys; print(json.dumps({"status": "success", "message": sys.argv[1], "data": {}, "thought": ""}))"""
)
COMMANDS: Final[dict[str, list[tuple[str, ...]]]] = {
    "worker": [("-c", PYTHON, "worker", "{socket}", *SERVED)],
    "jobs": [("-c", PYTHON, "jobs", "{socket}", one) for one in SERVED],
    "serve": [("serve", "--capability", SERVED[0], "--capability", SERVED[1], "--", "echo", "{capability}")],
    "bridge": [
        ("bridge", "sacp", "--capability", one, "--", sys.executable, "-c", ANSWER, one) for one in SERVED
    ],
}  # fmt: skip
"""The processes of each kind of worker."""


class Bus:
    """`ops`, who asks, and `worker`, who announces two capabilities. Only `ops` has a catalog with their records."""

    def __init__(self, home: Home, ops: Daemon, worker: Daemon) -> None:
        self.home, self.ops, self.worker = home, ops, worker
        self.client = Client(Endpoint(path=str(ops.socket_path)))

    def opened(self, *options: str) -> str:
        found: str = self.home.ctl_json("--name", "ops", "work", "open", *options)["work_id"]
        return found

    def ask(self, how: str, capability: str) -> str:
        """A work that asks for a capability, opened in one of the ways."""
        match how:
            case "cli capability":
                return self.opened("--to-capability", capability, "--text", "do it")
            case "cli intent":
                return self.opened("--to", "worker", "--intent", capability, "--text", "do it")
            case "cli record":
                return self.opened("--to", "worker", "--capability", capability)
            case "cli run":
                words = ("work", "run", "--to-capability", capability, "--text", "do it")
                found: str = self.home.ctl_json("--name", "ops", *words)["work_id"]
                return found
            case "client":
                return self.client.start(to_capability=capability, text="do it").id
            case "client map":
                return next(self.client.map(capability, ["do it"]))[1].work_id
            case "mcp":
                (work,) = McpClient(self.ops.socket_path).tool("open_work", capability=capability, task="do it")[
                    "works"
                ]
                return str(work["work_id"])
            case "chain":
                run = reach(
                    self.ops, begin(self.ops, chain({"a": {"capability": capability, "input": "x"}})), "completed"
                )
                return str(run["history"][0]["work_id"])
        raise ValueError(how)

    def end_of(self, work_id: str) -> dict[str, Any]:
        wait_for(lambda: self.ops.state_of(work_id) in ("completed", "failed"), 60, "the end of the work")
        step: dict[str, Any] = self.ops.get(f"/v1/works/{work_id}")["history"][-1]
        return step

    def done_by(self, work_id: str) -> str:
        """The capability as which the work was done."""
        step = self.end_of(work_id)
        assert step["event"] == "trace:completed", step
        return str((step["result"] or {}).get("stdout") or step["message"]).strip()


WAYS: Final = ("cli capability", "cli intent", "cli record", "cli run", "client", "client map", "mcp", "chain")


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    folder = tmp_path_factory.mktemp("asked")
    (folder / "catalog.json").write_text(json.dumps([{"id": one, "summary": "s", "outcome": "o"} for one in SERVED]))
    home, names = Home(folder), [word for one in SERVED for word in ("--capability", one)]
    with (
        Daemon(home, "worker", *names) as worker,
        Daemon(home, "ops", "--catalog", str(folder / "catalog.json")) as ops,
    ):
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
        yield Bus(home, ops, worker)


@contextmanager
def workers(bus: Bus, kind: str) -> Iterator[None]:
    with ExitStack() as stack:
        for words in COMMANDS[kind]:
            words = tuple(word.replace("{socket}", str(bus.worker.socket_path)) for word in words)
            head = () if words[0] == "-c" else ("-m", "aghbus.cli", "--name", "worker")
            running = subprocess.Popen(
                [sys.executable, *head, *words], env=bus.home.env, stdout=subprocess.DEVNULL, cwd=bus.home.root
            )
            stack.callback(running.wait, 30)
            stack.callback(running.terminate)
        yield


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.timeout(180)
def test_a_work_is_done_as_what_it_asks_for_or_refused(bus: Bus, kind: str) -> None:
    with workers(bus, kind):
        for how in WAYS:
            for capability in SERVED:
                assert (how, bus.done_by(bus.ask(how, capability))) == (how, capability)
        refused = bus.end_of(bus.ask("cli intent", "test.rum"))
        assert (refused["event"], refused["reason"]) == ("receipt:rejected", "unsupported_profile")
        assert refused["message"] == f"the work names test.rum; this peer serves {', '.join(SERVED)}"
        key = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
        words = ("--to", "worker", "--intent", key, "--text", "x", "--allow-secrets")
        secret = bus.end_of(bus.opened(*words))
        assert (secret["event"], secret["reason"]) == ("receipt:rejected", "unsupported_profile")
        assert key[:20] not in secret["message"]
        unnamed = bus.end_of(bus.ask("cli intent", "request"))
        if kind in ("worker", "serve"):  # one consumer for both
            assert (unnamed["event"], unnamed["reason"]) == ("receipt:rejected", "unsupported_profile")
            assert unnamed["message"].startswith("the work names no capability")
        else:
            assert unnamed["event"] == "trace:completed"


def test_a_sender_needs_no_catalog_to_ask_by_capability(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with Daemon(home, "ops") as ops, Daemon(home, "worker", "--capability", "lint") as worker:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
        sent = home.ctl_json("--name", "ops", "work", "open", "--to-capability", "lint", "--text", "x")
        (opening,) = ops.get(f"/v1/messages?work={sent['work_id']}")["messages"]
        assert (opening["to"], opening["envelope"]["body"]["intent"]) == ("worker", "lint")
        for other in (("--intent", "request"), ("--capability", "test.run")):
            done = home.ctl("--name", "ops", "work", "open", "--to-capability", "lint", "--text", "x", *other)
            assert done.returncode == 2, done.stderr


def test_the_opening_of_a_foreign_format_carries_the_capability_of_its_node(tmp_path: Path) -> None:
    home, message = Home(tmp_path), {"context": {"feature_id": "x", "workflow": "y", "iteration": 1}}
    message |= {"paths": {"feature_root": "specs/x/"}, "task": {"action": "write_spec"}}
    with Daemon(home, "ops") as ops, Daemon(home, "worker", "--capability", "spec.write") as worker:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
        begin(ops, chain({"a": {"capability": "spec.write", "format": "humaninloop", "input": message}}))
        item = worker.post("/v1/inbox/next", wait=30)["item"]
        assert item["message"]["envelope"]["body"]["intent"] == "spec.write"
        shown = worker.get(f"/v1/bridge/humaninloop/messages/{item['seq']}")
        assert shown["message"]["task"]["action"] == "write_spec"
