"""The permissions that `aghctl nats permissions` prints, on a real server: enough for daemons, and no more than that."""

import asyncio
import base64
import subprocess
from pathlib import Path

from aghbus.daemon.jetstream.stream import STREAM
from aghbus.daemon.nats.link import InboundMessage
from aghbus.daemon.nats.options import NatsOptions
from aghbus.protocol.agh.identifiers import route_token
from aghbus.protocol.agh.nats.names import durable_name
from tests.support.broker_users import Client, Decentralized, GuardedBroker, connected, threaded
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.jetstream import Operator
from tests.support.natsutil import NATS_SERVER, NatsServer, wait_until

ROOT = "agh.network.v0.ws_local.default"
OPS = route_token("ops")
WORKER = route_token("patch-worker")
OPS_CONSUMER = durable_name("ws_local", "default", OPS)
WORKER_CONSUMER = durable_name("ws_local", "default", WORKER)
QUICK = ("--retry-first", "100ms", "--retry-ceiling", "500ms")
DURABLE = ("--durability", "jetstream", *QUICK)


def problems(daemon: Daemon) -> str:
    return " | ".join(daemon.get("/v1/status")["problems"])


def play_through(home: Home, ops: Daemon, worker: Daemon) -> None:
    """Discovery, a work with its receipts and traces, the acknowledgement of each side's daemon."""
    wait_for(lambda: ops.knows("patch-worker") and worker.knows("ops"), 20, "presence")
    (found,) = home.ctl_json("--name", "ops", "whois", "test.run", "--wait", "20s")["peers"]
    assert found["peer_id"] == "patch-worker"
    opened = ops.post("/v1/works", to="patch-worker", text="Run it")
    work_id = opened["work_id"]
    wait_for(lambda: worker.get("/v1/works")["works"], 20, "the work")
    worker.post(f"/v1/works/{work_id}/accept")
    done = worker.post(f"/v1/works/{work_id}/complete", result={"passed": True})
    wait_for(lambda: ops.state_of(work_id) == "completed", 20, "the end")
    for daemon, message in ((ops, opened["id"]), (worker, done["id"])):
        wait_for(
            lambda: daemon.get(f"/v1/messages/{message}")["delivery"] == "receipted",  # noqa: B023 - called at once
            20,
            "the commit acknowledgement",
        )
    assert (problems(ops), problems(worker)) == ("", "")
    for daemon in (ops, worker):
        assert daemon.get("/v1/status")["counters"].get("link.PermissionDenied", 0) == 0


async def test_two_daemons_work_in_core_mode_over_tls(home: Home) -> None:
    broker = GuardedBroker(home)
    async with broker.server:
        worker = broker.daemon("patch-worker", "--capability", "test.run", *QUICK)
        with broker.daemon("ops", *QUICK) as ops, worker:
            play_through(home, ops, worker)
            async with connected(broker.options("operator")) as operator:
                answer = await operator.link.request(f"$SRV.PING.aghbus.{WORKER}", b"", 20)
                assert b'"peer_id":"patch-worker"' in answer.data


async def test_a_daemon_that_may_not_answer_services_is_ready(home: Home) -> None:
    broker = GuardedBroker(home)
    broker.write(broker.permissions.replace('"$SRV.*', '"nothing.*'))
    async with broker.server:
        with broker.daemon("patch-worker") as worker:
            wait_for(lambda: "subscribe to $srv." in problems(worker).lower(), 20, "the problem")
            assert worker.get("/v1/status")["ready"]


async def test_two_daemons_work_with_a_stream_that_the_operator_made(home: Home, tmp_path: Path) -> None:
    broker = GuardedBroker(home, "--durability", "jetstream", "--artifacts")
    async with broker.server:
        await broker.set_up()
        worker = broker.daemon("patch-worker", "--capability", "test.run", *DURABLE)
        with broker.daemon("ops", *DURABLE) as ops, worker:
            await threaded(play_through, home, ops, worker)
            (consumer,) = worker.get("/v1/status")["broker"]["jetstream"]["consumers"]
            assert consumer["name"] == WORKER_CONSUMER

            report = tmp_path / "report.xml"
            report.write_bytes(b"<report/>" * 50_000)
            uri = home.ctl_json("--name", "patch-worker", "artifact", "put", "work_1", str(report))["uri"]
            target = tmp_path / "got.xml"
            home.ctl_json("--name", "ops", "artifact", "get", uri, "-O", str(target))
            assert target.read_bytes() == report.read_bytes()

            # what an absent peer misses is kept for it, and a lost connection is taken up again
            worker.kill()
            sent = ops.post("/v1/works", to="patch-worker", text="while you were away")
            wait_for(lambda: ops.get(f"/v1/messages/{sent['id']}")["delivery"] == "published", 20, "the stream")
            worker.start()
            wait_for(lambda: len(worker.get("/v1/works")["works"]) == 2, 20, "what was missed")
            await broker.server.restart()
            again = ops.post("/v1/works", to="patch-worker", text="after the restart")
            wait_for(lambda: len(worker.get("/v1/works")["works"]) == 3, 30, "the link to come back")
            wait_for(lambda: ops.get(f"/v1/messages/{again['id']}")["delivery"] == "receipted", 30, "the answer")
            assert ops.get("/v1/status")["counters"].get("link.PermissionDenied", 0) == 0


async def test_a_peers_credentials_cannot_read_messages_of_another_peer(home: Home) -> None:
    broker = GuardedBroker(home, "--durability", "jetstream", "--artifacts")
    async with broker.server:
        await broker.set_up()
        with broker.daemon("ops", *DURABLE) as ops:
            async with (
                connected(broker.options("patch-worker")) as intruder,
                connected(broker.options("operator")) as operator,
            ):
                seen: list[InboundMessage] = []
                for subject in (
                    f"{ROOT}.peer.{OPS}",
                    f"{ROOT}.peer.*",
                    f"{ROOT}.>",
                    "agh.>",
                    ">",
                    "*.>",
                    "_INBOX.>",
                    f"_INBOX.{OPS}.>",
                    f"_INBOX.{OPS}.deliver.1",
                    "$JS.>",
                    "$O.>",
                    "$SYS.>",
                    "agh.network.v0.ws_local.other.broadcast",
                ):
                    intruder.link.subscribe(subject, seen.append)
                    await intruder.refused("subscription", subject)
                # traffic in all these places
                await operator.link.publish(f"{ROOT}.peer.{OPS}", b"for ops only")
                await operator.link.publish("elsewhere", b"x")
                await threaded(home.ctl, "--name", "ops", "whois")  # requests of ops' own, with answers to its inboxes
                await operator.link.flush(20)
                await wait_until(lambda: ops.get("/v1/status")["counters"].get("refused", 0) >= 1, 30, "ops to have it")
                await intruder.link.flush(20)
                assert seen == []


async def test_a_peers_credentials_allow_nothing_beyond_the_binding(home: Home) -> None:
    broker = GuardedBroker(home, "--durability", "jetstream", "--artifacts")
    async with broker.server:
        await broker.set_up()
        with broker.daemon("ops", *DURABLE):
            async with connected(broker.options("patch-worker")) as intruder:
                for subject in (
                    "elsewhere",
                    "agh.network.v0.ws_local.other.broadcast",
                    f"agh.network.v0.ws_other.default.peer.{OPS}",
                    f"{ROOT}.peer.{OPS}.more",
                    f"_INBOX.{OPS}.api.1.1",
                    f"_INBOX.{OPS}.pub.1.1.1",
                    f"_INBOX.{OPS}.deliver.1",
                    f"$JS.ACK.{STREAM}.{OPS_CONSUMER}.1.1.1.0.0",
                    f"$JS.API.STREAM.CREATE.{STREAM}",
                    f"$JS.API.STREAM.UPDATE.{STREAM}",
                    f"$JS.API.STREAM.DELETE.{STREAM}",
                    f"$JS.API.STREAM.PURGE.{STREAM}",
                    "$JS.API.STREAM.PURGE.OBJ_AGH_ARTIFACTS_V0",
                    f"$JS.API.STREAM.MSG.GET.{STREAM}",
                    f"$JS.API.STREAM.MSG.DELETE.{STREAM}",
                    f"$JS.API.DIRECT.GET.{STREAM}",
                    f"$JS.API.DIRECT.GET.{STREAM}.{ROOT}.peer.{OPS}",
                    f"$JS.API.CONSUMER.DELETE.{STREAM}.{OPS_CONSUMER}",
                    f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{OPS_CONSUMER}",
                    "$JS.API.STREAM.DELETE.OBJ_AGH_ARTIFACTS_V0",
                    "$SYS.REQ.SERVER.PING",
                ):
                    await intruder.link.publish(subject, b"{}")
                    await intruder.refused("publish", subject)
                # nor has the server settle in its name, by an answer to a request
                settled = f"$JS.ACK.{STREAM}.{OPS_CONSUMER}.1.1.1.0.0"
                for subject in (f"{ROOT}.broadcast", "$JS.API.DIRECT.GET.OBJ_AGH_ARTIFACTS_V0"):
                    intruder.denied.clear()
                    await intruder.link.publish(subject, b"{}", reply=settled)
                    await intruder.link.flush(20)
                    await wait_until(lambda: any("reply" in one for one in intruder.denied), 20, "the refusal")


async def test_a_peer_cannot_remove_or_replace_an_artifact_of_another_peer(home: Home, tmp_path: Path) -> None:
    broker = GuardedBroker(home, "--durability", "jetstream", "--artifacts")
    bucket = "AGH_ARTIFACTS_V0"
    async with broker.server:
        await broker.set_up()
        with broker.daemon("ops", *DURABLE, "--artifacts-max-bytes", "1MiB") as ops:
            report, target = tmp_path / "report.xml", tmp_path / "got.xml"
            report.write_bytes(b"<report/>" * 50_000)
            uri = home.ctl_json("--name", "ops", "artifact", "put", "work_1", str(report))["uri"]
            meta = f"$O.{bucket}.M.{base64.urlsafe_b64encode(b'work_1/report.xml').decode()}"
            async with (
                connected(broker.options("patch-worker")) as intruder,
                connected(broker.options("operator")) as operator,
            ):
                api = Operator(operator.link)

                async def stored() -> int:
                    return int((await api.call(f"STREAM.INFO.OBJ_{bucket}"))["state"]["messages"])

                before = await stored()
                for headers in ({"Nats-Rollup": "all"}, {"Nats-Rollup": "sub"}, {}):
                    for subject in (meta, f"$O.{bucket}.C.mine"):
                        await intruder.link.publish(subject, b'{"deleted":true}', headers=headers)
                async with asyncio.timeout(20):
                    while await stored() < before + 2:  # those without a roll-up, which come last
                        pass
                assert await stored() == before + 2
                assert intruder.denied == []
            home.ctl_json("--name", "ops", "artifact", "get", uri, "-O", str(target))
            assert target.read_bytes() == report.read_bytes()
            # the rest of an aborted upload stays until the bucket drops it, without a complaint
            report.write_bytes(bytes(2 << 20))
            refused = home.ctl("--name", "ops", "artifact", "put", "work_2", str(report))
            assert b"longer than" in refused.stderr
            assert problems(ops) == ""


def test_printed_requests_name_the_replicas(home: Home) -> None:
    options = ("--peer", "ops", "--durability", "jetstream", "--artifacts", "--replicas", "3")
    steps = home.ctl_json("nats", "permissions", *options)["setup"]
    streams = [step["payload"] for step in steps if ".STREAM.CREATE." in step["subject"]]
    assert [stream["num_replicas"] for stream in streams] == [3, 3]
    printed = home.ctl("nats", "permissions", *options).stdout.decode()
    assert printed.count('"num_replicas": 3') == 2
    assert home.ctl("nats", "permissions", "--peer", "ops", "--replicas", "6").returncode == 2


async def test_a_peer_cannot_create_a_consumer_to_read_other_messages(home: Home) -> None:
    """The way around the subscriptions: the stream holds everybody's messages, and a consumer may have any filter."""
    broker = GuardedBroker(home, "--durability", "jetstream")
    async with broker.server:
        await broker.set_up()
        async with connected(broker.options("patch-worker")) as intruder:
            for name in (WORKER_CONSUMER, OPS_CONSUMER, "mine"):
                for kind in ("CREATE", "DURABLE.CREATE"):
                    subject = f"$JS.API.CONSUMER.{kind}.{STREAM}.{name}"
                    await intruder.link.publish(subject, b"{}")
                    await intruder.refused("publish", subject)
            subject = f"$JS.API.CONSUMER.CREATE.{STREAM}"
            await intruder.link.publish(subject, b"{}")
            await intruder.refused("publish", subject)
        async with connected(broker.options("operator")) as operator:
            api = Operator(operator.link)
            names = (await api.call(f"CONSUMER.NAMES.{STREAM}"))["consumers"]
            assert sorted(names) == sorted([OPS_CONSUMER, WORKER_CONSUMER])


async def test_a_peer_may_publish_under_any_name(home: Home) -> None:
    """As docs/security/broker.md says: a user may write to every peer of its channel, under any name."""
    broker = GuardedBroker(home)
    async with (
        broker.server,
        connected(broker.options("patch-worker")) as client,
        connected(broker.options("ops")) as ops,
    ):
        got: list[InboundMessage] = []
        ops.link.subscribe(f"{ROOT}.peer.{OPS}", got.append)
        await ops.link.flush(20)
        await client.link.publish(f"{ROOT}.peer.{OPS}", b'{"from":"somebody else"}')
        await client.link.flush(20)
        await wait_until(lambda: got, 20, "the message")
        assert client.denied == []


async def test_a_denied_subscription_is_reported(home: Home) -> None:
    broker = GuardedBroker(home)
    narrow = broker.permissions.replace(f'"{ROOT}.peer.{WORKER}"', '"nothing"')
    assert narrow != broker.permissions
    broker.write(narrow)
    async with broker.server:
        worker = broker.daemon("patch-worker").start(wait=False)
        wait_for(worker.answers, 20, "the API")
        wait_for(lambda: "does not let us subscribe" in problems(worker), 20, "the problem")
        status = worker.get("/v1/status")
        assert status["broker"]["state"] == "up"
        assert status["ready"] is False
        assert f"{ROOT}.peer.{WORKER}" in problems(worker)
        assert "aghctl nats permissions --peer patch-worker" in problems(worker)
        done = home.ctl("--name", "patch-worker", "doctor")
        assert b"does not let us subscribe to " in done.stdout
        assert worker.stop() == 0
        # with the right permissions all is well
        broker.write(broker.permissions)
        await broker.server.restart()
        with worker:
            assert problems(worker) == ""


async def test_a_denied_publish_is_reported(home: Home) -> None:
    broker = GuardedBroker(home)
    broker.write(broker.permissions.replace(f'    "{ROOT}.peer.*"\n', "", 1))  # that of ops
    async with broker.server:
        with broker.daemon("ops", *QUICK) as ops, broker.daemon("patch-worker", *QUICK):
            wait_for(lambda: ops.knows("patch-worker"), 20, "presence")
            ops.post("/v1/works", to="patch-worker", text="Run it")
            wait_for(lambda: f"let us publish to {ROOT}.peer.{WORKER}" in problems(ops), 20, "the problem")


async def test_a_missing_stream_is_reported(home: Home) -> None:
    broker = GuardedBroker(home, "--durability", "jetstream")
    async with broker.server:
        worker = broker.daemon("patch-worker", *DURABLE).start(wait=False)
        wait_for(worker.answers, 20, "the API")
        wait_for(lambda: f"publish to $js.api.stream.create.{STREAM.lower()}" in problems(worker), 20, "the problem")
        await broker.set_up()
        wait_for(lambda: worker.get("/v1/status")["ready"], 30, "the stream to be found")
        assert worker.stop() == 0


async def test_the_same_permissions_in_users_jwts(home: Home, tmp_path: Path) -> None:
    document = home.ctl_json("nats", "permissions", "--peer", "ops", "--peer", "patch-worker")
    users = Decentralized(tmp_path, document)
    async with NatsServer(config=users.config) as server:

        def daemon(name: str, *args: str) -> Daemon:
            return Daemon(home, name, "--nats", server.url, "--nats-creds", users.creds(name), *QUICK, *args)

        with daemon("ops") as ops, daemon("patch-worker", "--capability", "test.run") as worker:
            play_through(home, ops, worker)
        async with connected(NatsOptions(servers=(server.url,), creds=users.creds("patch-worker"))) as intruder:
            await _is_held(intruder)


async def _is_held(intruder: Client) -> None:
    intruder.link.subscribe(f"{ROOT}.peer.{OPS}", lambda _message: None)
    await intruder.refused("subscription", f"{ROOT}.peer.{OPS}")
    await intruder.link.publish("elsewhere", b"")
    await intruder.refused("publish", "elsewhere")


def test_the_server_accepts_permissions_for_any_workspace(home: Home, tmp_path: Path) -> None:
    """nats-server reads every name that a workspace may have; two peers with like names keep theirs apart."""
    workspace = 'a"b\\c#d$e{f}é'
    printed = home.ctl("nats", "permissions", "--peer", "a.b", "--peer", "a-b", "--workspace", workspace)
    assert printed.returncode == 0, printed.stderr
    names = [line.partition(":")[0] for line in printed.stdout.decode().splitlines() if line.startswith("agh_")]
    assert len(set(names)) == 2
    users = ", ".join(f"{{ user: u{n}, password: p, permissions: ${name} }}" for n, name in enumerate(names))
    (tmp_path / "permissions.conf").write_bytes(printed.stdout)
    (tmp_path / "nats.conf").write_text(f'include "permissions.conf"\nauthorization {{ users: [{users}] }}\n')
    checked = subprocess.run([NATS_SERVER, "-t", "-c", str(tmp_path / "nats.conf")], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
