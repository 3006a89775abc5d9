"""A peer whose daemon is not of this project, as the Go reference is, simulated on a real broker."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.bridging import submit
from tests.support.chain_agents import begin, chain
from tests.support.daemons import ADMIT_ALL, Daemon, Home, HttpError, wait_for
from tests.support.foreign import CARD, Foreign, foreign_peer
from tests.support.natsutil import NatsServer, wait_until

WAIT = 30.0
TEXT = "unexpected token: }"


@asynccontextmanager
async def meeting(folder: Path, *options: str) -> AsyncIterator[tuple[Daemon, Foreign]]:
    """Our daemon `ops`, and the other peer `reference`, which has greeted."""
    async with NatsServer() as server, foreign_peer(server.url, "reference") as reference:
        with Daemon(Home(folder), "ops", "--nats", server.url, *options) as ops:
            await reference.greet()
            await wait_until(lambda: ops.knows("reference"), WAIT)
            yield ops, reference


def refused(ops: Daemon, path: str, **ask: Any) -> str:
    with pytest.raises(HttpError) as caught:
        ops.post(path, **ask)
    assert caught.value.answer["code"] == "secret_like"
    return str(caught.value.answer["message"])


async def test_what_the_other_peer_would_drop_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with meeting(tmp_path) as (ops, reference):
        say = {"kind": "say", "body": {"text": TEXT}, "thread_id": "thread_one"}
        message = refused(ops, "/v1/messages", **say, to="reference")
        assert message.startswith("body.text: ")
        assert "pattern assignment" in message and "reference is a Go reference" in message
        assert TEXT not in message
        assert "pattern key" in refused(ops, "/v1/works", to="reference", text="go", ext={"a": {"oauth_code": 1}})
        await reference.publish(reference.work("ops", "work_1"))
        await wait_until(lambda: ops.get("/v1/works")["works"], WAIT)
        assert "body.message: " in refused(ops, "/v1/works/work_1/complete", message="password=x")
        ops.post("/v1/messages", **say, to="unknown")  # perhaps one of ours
        ops.post("/v1/messages", **say)  # for those of the channel that take it
        ops.post("/v1/messages", **say, to="reference", allow_secrets=True)
        await reference.expect(text=TEXT, to="reference")
        ops.post("/v1/works/work_1/complete", message=TEXT, result={"token": "x"}, replace_secrets=True)
        ended = await reference.expect(kind="trace", state="completed")
        deep: Any = json.loads("[" * 600 + "]" * 600)
        with pytest.raises(HttpError, match="nested"):  # checked before anything is replaced
            body = {"text": "x", "artifacts": [deep]}
            ops.post("/v1/messages", **{**say, "body": body}, to="reference", replace_secrets=True)
        assert ended["body"]["message"] == "unexpected token: [REDACTED]"
        assert ended["body"]["result"] == {"token [REDACTED]": None}
        ops.post("/v1/works", to="reference", text="go", ext={"a": {"api key": "x"}}, replace_secrets=True)
        assert (await reference.expect(text="go"))["ext"]["a"] == {"api key [REDACTED]": None}


async def test_a_script_gets_text_that_the_reference_refuses(tmp_path: Path) -> None:
    async with meeting(tmp_path) as (ops, reference):
        card = {"peer_id": "reference", **CARD, "trust_modes_supported": ["unverified"]}
        await reference.publish(reference.envelope("greet", {"peer_card": card}))
        await wait_until(lambda: ops.get("/v1/peers")["peers"][1]["card"]["trust_modes_supported"], WAIT)
        ops.post("/v1/works", to="reference", text=TEXT)
        await reference.expect(text=TEXT)


async def test_secrets_are_redacted_in_command_bridge_and_chain_messages(tmp_path: Path) -> None:
    async with meeting(tmp_path, "--capability", "test.run", *ADMIT_ALL) as (ops, reference):
        await reference.publish(reference.work("ops", "work_1"))
        await wait_until(lambda: ops.get("/v1/works")["works"], WAIT)
        command = [sys.executable, "-c", f"print({TEXT!r})"]
        done = ops.home.ctl("--name", "ops", "serve", "--capability", "test.run", "--once", "--", *command)
        assert done.returncode == 0, done.stderr
        ended = await reference.expect(kind="trace", state="completed")
        assert ended["body"]["message"] == "unexpected token: [REDACTED]"
        assert ended["body"]["result"]["stdout"] == "unexpected token: [REDACTED]\n"
        submit(ops, "sacp", f"Explain: {TEXT}", target="reference")
        asked = await reference.expect(kind="say", to="reference")
        assert asked["body"]["text"] == "Explain: unexpected token: [REDACTED]"
        assert TEXT not in json.dumps(asked)
        begin(ops, chain({"a": {"peer": "reference", "input": f"Again: {TEXT}"}}))
        await reference.expect(kind="say", text="Again: unexpected token: [REDACTED]")


async def test_peers_show_which_implementation_they_are_of(tmp_path: Path) -> None:
    async with meeting(tmp_path) as (ops, reference):
        ours = Foreign(reference.client, "ours")
        await ours.greet(ext={"aghbus.instance": "1"})
        await wait_until(lambda: ops.knows("ours"), WAIT)
        shown = {peer["peer_id"]: peer["aghbus"] for peer in ops.get("/v1/peers")["peers"]}
        assert shown == {"ops": True, "reference": False, "ours": True}


async def test_capability_send_opens_work_with_work_id_else_warns(tmp_path: Path) -> None:
    catalog = tmp_path / "capabilities.toml"
    catalog.write_text('[capabilities."test.run"]\nsummary = "Run tests."\noutcome = "A report."\n')
    async with meeting(tmp_path, "--catalog", str(catalog)) as (ops, reference):
        send = ("--name", "ops", "capability", "send", "test.run")
        for receiver in (("--to", "reference"), ()):
            done = ops.home.ctl(*send, *receiver)
            assert done.returncode == 0
            assert b"reference: of another implementation" in done.stderr
            assert b"--work" in done.stderr
        done = ops.home.ctl(*send, "--to", "reference", "--work", "work_7")
        assert done.returncode == 0
        assert b"another implementation" not in done.stderr
        assert (await reference.expect(kind="capability", work_id="work_7"))["to"] == "reference"
        assert ops.state_of("work_7") == "submitted"
        assert b"another implementation" not in ops.home.ctl(*send, "--to", "unknown").stderr


def test_settings_that_other_implementations_do_not_accept_are_warned_of(home: Home) -> None:
    options = ("--capability", "task.write", "--discovery-interval", "45s", "--display-name", "token: x")
    with Daemon(home, "ops", *options) as ops:
        wait_for(lambda: "task.write" in ops.log.read_text(), WAIT, "the warning at start")
        checked = home.env | {"AGHD_CAPABILITIES": "task.write", "AGHD_DISCOVERY_INTERVAL": "45s"}
        command = [sys.executable, "-m", "aghbus.daemon", "config", "check"]
        told = subprocess.run(command, env=checked, capture_output=True, check=True, timeout=60).stdout.decode()
        assert "note: capability task.write is announced without a signature" in told
        assert "note: discovery.interval is 45s" in told
        log = ops.log.read_text()
        assert "discovery.interval is 45s" in log
        assert "display_name has text in the form of a credential" in log
        checks = home.ctl_json("--name", "ops", "doctor")["checks"]
        (card,) = [one for one in checks if one["check"] == "own card"]
        assert card["state"] == "warn" and "task.write" in card["detail"]
    with Daemon(home, "fine", "--capability", "test.run") as fine:
        assert "configuration" not in fine.log.read_text()
        checks = home.ctl_json("--name", "fine", "doctor")["checks"]
        assert not [one for one in checks if one["check"] == "own card"]
