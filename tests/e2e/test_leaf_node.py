"""A leaf node made from deploy/nats/leaf.conf, at the server of deploy/nats/server.conf, with the printed permissions."""

from aghbus.daemon.nats.link import InboundMessage
from aghbus.daemon.nats.options import NatsOptions
from aghbus.protocol.agh.identifiers import route_token
from tests.support.broker_users import GuardedBroker, connected, threaded
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.natsutil import wait_until

ROOT = "agh.network.v0.ws_local.default"
QUICK = ("--retry-first", "100ms", "--retry-ceiling", "500ms")


def complete(opener: Daemon, target: Daemon, text: str) -> None:
    """One work from the opener to the target and back."""
    work_id = opener.post("/v1/works", to=target.name, text=text)["work_id"]
    wait_for(lambda: target.state_of(work_id), 30, "the work")
    target.post(f"/v1/works/{work_id}/accept")
    target.post(f"/v1/works/{work_id}/complete", result={"done": True})
    wait_for(lambda: opener.state_of(work_id) == "completed", 30, "the end")


async def test_peers_on_both_sides_of_a_leaf_node_work_together(home: Home) -> None:
    broker = GuardedBroker(home)
    async with broker.server, broker.leaf() as leaf:
        with (
            broker.daemon("ops", *QUICK) as ops,
            Daemon(home, "laptop", "--nats", leaf.url, *QUICK) as laptop,
        ):
            await threaded(wait_for, lambda: ops.knows("laptop") and laptop.knows("ops"), 30, "presence")
            await threaded(complete, ops, laptop, "to the office")
            await threaded(complete, laptop, ops, "from the office")
            assert ops.get("/v1/status")["problems"] == []
            assert laptop.get("/v1/status")["problems"] == []


async def test_messages_of_other_peers_do_not_reach_the_leaf_node(home: Home) -> None:
    broker = GuardedBroker(home)
    async with (
        broker.server,
        broker.leaf() as leaf,
        connected(NatsOptions(servers=(leaf.url,))) as behind,
        connected(broker.options("operator")) as operator,
    ):
        seen: list[InboundMessage] = []
        behind.link.subscribe(">", seen.append)
        behind.link.subscribe(f"{ROOT}.peer.*", seen.append)
        for name in ("ops", "laptop"):
            behind.link.subscribe(f"{ROOT}.peer.{route_token(name)}", seen.append)

        async def arrived() -> bool:
            for name in ("ops", "laptop"):
                await operator.link.publish(f"{ROOT}.peer.{route_token(name)}", name.encode())
            await operator.link.flush(20)
            await behind.link.flush(20)
            return bool(seen)

        while not await arrived():  # until the leaf node has joined
            pass
        await wait_until(lambda: seen, 20, "the message")
        assert {message.data for message in seen} == {b"laptop"}
