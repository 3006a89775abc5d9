"""Makes a kept store: `python -m tests.support.keep_store tests/store/kept/N` for schema N, when it is released.

It is a backup with keys of a real daemon that has one of everything that a store keeps. tests/store/test_kept_stores.py and
tests/e2e/test_kept_stores.py open the kept stores.
"""

import asyncio
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

from aghbus.protocol.agh.identifiers import subject_for
from tests.support.bridging import broker
from tests.support.chain_agents import begin, chain, reach
from tests.support.daemons import ADMIT_ALL, Daemon, Home, delivery, has_no_subscriber, wait_for
from tests.support.foreign import foreign_peer

KEPT: Final = Path(__file__).parent.parent / "store" / "kept"
WAIT: Final = 60.0
VERBS: Final = {
    "submitted": None,
    "working": "accept",
    "needs_input": "need-input",
    "completed": "complete",
    "failed": "fail",
    "canceled": "cancel",
}
"""The states of a work, and what its target does to bring it there."""


def facts(daemon: Daemon) -> dict[str, Any]:
    """What a daemon shows of its store, without ids and times."""
    works, counts = daemon.get("/v1/works?limit=100")["works"], daemon.get("/v1/inbox")["counts"]
    return {
        "works": sorted(f"{one['role']} {one['state']}" for one in works),
        # Where the store was made, a clock that is set back to that time looks like a step, and leases move with it.
        "inbox": {"alive": counts["ready"] + counts["leased"], "dead": counts["dead"]},
        "last_error": [one["last_error"] for one in daemon.get("/v1/inbox?state=dead")["items"]],
        "peers": sorted(one["peer_id"] for one in daemon.get("/v1/peers?all=true")["peers"]),
        "texts": sorted(_texts(daemon)),
        "trust": sorted(f"{one['rule']} {one['subject'] or ''}".strip() for one in daemon.get("/v1/trust")["rules"]),
        "quarantine": [one["reason"] for one in daemon.get("/v1/quarantine")["quarantined"]],
        "runs": sorted(one["state"] for one in daemon.get("/v1/chains/runs")["runs"]),
        "bridge": [one["status"] for one in daemon.get("/v1/bridge/sacp/log")["rows"]],
    }


def _texts(daemon: Daemon) -> list[str]:
    bodies = [one["envelope"]["body"] for one in daemon.get("/v1/messages?limit=1000")["messages"]]
    return [body["text"] for body in bodies if "text" in body]


async def _refused(url: str, handle: str) -> None:
    async with foreign_peer(url, "outsider") as outsider:
        await outsider.client.publish(subject_for("ws_local", "default", handle), b"no envelope")
        await outsider.client.flush()


def play(ops: Daemon, worker: Daemon, handle: str, url: str) -> None:
    """One of everything, in the store of `ops`, whose peer id is `handle`."""
    for state, verb in VERBS.items():
        work = ops.post("/v1/works", to="worker", text=f"to be {state}")["work_id"]
        wait_for(partial(worker.state_of, work), WAIT, "the opening")
        if verb is not None:
            worker.post(f"/v1/works/{work}/{verb}", message=f"it is {state}")
        wait_for(lambda: ops.state_of(work) == state, WAIT, state)  # noqa: B023 - called at once
    for text in ("is dead", "is leased", "is acked", "is ready"):
        work = worker.post("/v1/works", to=handle, text=text)["work_id"]
        wait_for(partial(ops.state_of, work), WAIT, "the opening")
    taken = {item["message"]["envelope"]["body"].get("text"): item["seq"] for item in ops.get("/v1/inbox")["items"]}
    for _ in range(5):
        ops.post(f"/v1/inbox/{taken['is dead']}/lease", lease="lease-of-test")
        ops.post(f"/v1/inbox/{taken['is dead']}/nack", delay=0, error="the disk is full")
    ops.post(f"/v1/inbox/{taken['is leased']}/lease", lease="lease-of-test", visibility=3600)
    ops.post(f"/v1/inbox/{taken['is acked']}/ack")
    for text, direct in (("received", False), ("in a direct room", True)):
        said = ops.post("/v1/messages", kind="say", to="worker", body={"text": text}, direct=direct)["id"]
        wait_for(lambda: delivery(ops, said) == "receipted", WAIT, "the acknowledgement")  # noqa: B023 - called at once
    queued = ops.post("/v1/messages", kind="say", to="nobody", body={"text": "waits for its receiver"})["id"]
    wait_for(lambda: has_no_subscriber(ops, queued), WAIT, "the answer of the broker")
    asyncio.run(_refused(url, handle))
    wait_for(lambda: ops.get("/v1/quarantine")["quarantined"], WAIT, "the quarantine")
    ops.post("/v1/bridge/sacp", text="List the names.", target="worker")
    reach(ops, begin(ops, chain({"a": {"peer": "worker", "input": "a step"}}), input="go"), "running")
    wait_for(lambda: "a step" in _texts(worker), WAIT, "the work of the chain")


def keep(folder: Path) -> None:
    """Write the kept store to the new folder `folder`."""
    with tempfile.TemporaryDirectory() as root, broker() as url:
        home = Home(Path(root))
        handle = home.ctl_json("--name", "ops", "key", "generate")["handle"]
        flags = ("--nats", url, *ADMIT_ALL)
        agents = ("--bridge-agent", "asker=ops", "--bridge-agent", "helper=worker")
        with Daemon(home, "worker", *flags) as worker:
            with Daemon(home, "ops", *flags, *agents) as ops:
                wait_for(lambda: ops.knows("worker") and worker.knows(handle), WAIT, "presence")
                home.ctl_json("--name", "ops", "trust", "allow", _other_key(home))
                play(ops, worker, handle, url)
            home.ctl_json("--name", "ops", "backup", f"{folder}/", "--with-keys")  # presence is written at the end


def _other_key(home: Home) -> str:
    return str(home.ctl_json("--name", "other", "key", "generate")["key_id"])


if __name__ == "__main__":
    keep(Path(sys.argv[1]).absolute())
