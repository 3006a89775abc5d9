"""Messages that are costly to decode: what a flood of them costs a daemon, and what an honest peer still gets."""

import json
from collections.abc import Iterator
from functools import partial

import pytest

from aghbus.protocol.agh.trust.keys import SigningKey
from aghbus.protocol.agh.trust.proof import EnvelopeSigner
from tests.support.daemons import Daemon, Home, HttpError, wait_for
from tests.support.foreign import Foreign, foreign_peer
from tests.support.natsutil import NatsServer

SIZE = 1_000_000
EACH = 4  # messages of each shape
RATIO = (
    25  # of processor time to that of as many megabytes of text; it was 70 for denormal doubles, 200 for refused ones
)
FREE = ("--limits-messages-per-minute", "100000")


def repeated(unit: str, count: int = SIZE) -> str:
    return "[" + ",".join([unit] * min(count, SIZE // (len(unit) + 1))) + "]"


SHAPES = {
    "nested": repeated("[" * 100 + "]" * 100),
    "nested within the bounds": repeated("[" * 100 + "]" * 100, 650),
    "small arrays": repeated("[]"),
    "small objects within the bounds": repeated('{"a":1}', 65_000),
    "denormal doubles": repeated("5e-324"),
    "denormal doubles within the bounds": repeated("5e-324", 65_000),
    "long integers": repeated("1" * 4_000),
    "keys": "{" + ",".join(f'"{number:x}":1' for number in range(95_000)) + "}",
    "escapes": '"' + "\\n" * (SIZE // 2) + '"',
    "surrogates": repeated('"\\ud83d\\ude00"', 60_000),
}


def envelopes(peer: Foreign, value: str) -> Iterator[tuple[bytes, str | None]]:
    """Messages with `value`, each with its recipient: in an extension, an unknown member, a result, a card, and refused."""
    room = {"surface": "thread", "thread_id": "thread_heavy", "to": "ops"}
    lists = ("profiles_supported", "capabilities", "artifacts_supported", "trust_modes_supported")
    card = {"peer_id": peer.peer_id, **{name: [] for name in lists}, "ext": {"a": "@"}}
    for _ in range(EACH):
        for document in (
            peer.envelope("say", {"text": "x"}, **room, ext={"a": "@"}),
            peer.envelope("say", {"text": "x"}, **room, x_new="@"),
            peer.envelope("trace", {"state": "working", "result": "@"}, **room, work_id="work_heavy"),
            peer.envelope("greet", {"peer_card": card}),
            peer.work("ops", "work_heavy", ts="@"),
        ):
            yield json.dumps(document).replace('"@"', value, 1).encode(), document["to"]


async def cost_of(daemon: Daemon, peer: Foreign, messages: list[tuple[bytes, str | None]]) -> float:
    """Processor seconds of the daemon for these messages, all of which it receives and decides."""
    received, before = daemon.get("/v1/status")["counters"].get("received", 0), daemon.processor_seconds()
    for raw, to in messages:
        await peer.publish(raw, to)
    wait_for(
        lambda: daemon.get("/v1/status")["counters"].get("received", 0) >= received + len(messages), 60, "the messages"
    )
    return daemon.processor_seconds() - before


def has(daemon: Daemon, message_id: str) -> bool:
    try:
        daemon.get(f"/v1/messages/{message_id}")
    except HttpError:
        return False
    return True


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("heavy"))


async def test_no_shape_of_json_costs_much_more_than_a_text_of_its_size(home: Home, server: NatsServer) -> None:
    options = ("--nats", server.url, *FREE)
    with Daemon(home, "ops", *options) as ops, Daemon(home, "worker", *options) as worker:
        async with foreign_peer(server.url, "mallory") as peer:
            wait_for(lambda: worker.knows("ops"), 20, "presence")
            text = await cost_of(ops, peer, list(envelopes(peer, f'"{"x" * SIZE}"')))
            for shape, value in SHAPES.items():
                cost = await cost_of(ops, peer, list(envelopes(peer, value)))
                assert cost < RATIO * max(text, 0.1), (shape, cost, text)
                honest = worker.post("/v1/messages", kind="say", body={"text": shape}, to="ops", thread_id="thread_one")
                wait_for(partial(has, ops, honest["id"]), 30, f"an honest message after {shape}")
            assert ops.get("/v1/status")["counters"]["refused.malformed"] >= EACH * len(SHAPES)


async def test_a_signature_over_many_doubles_costs_a_bounded_time(home: Home) -> None:
    signer = EnvelopeSigner(SigningKey(bytes(range(32))), "keyed")
    async with NatsServer() as server, foreign_peer(server.url, signer.handle) as peer:
        with Daemon(home, "signed", "--nats", server.url, *FREE) as daemon:

            def signed(value: object) -> list[tuple[bytes, str | None]]:
                room = {"surface": "thread", "thread_id": "thread_heavy", "to": "signed"}
                return [
                    (
                        json.dumps(signer(peer.envelope("say", {"text": "x"}, **room, ext={"a": value}))).encode(),
                        "signed",
                    )
                    for _ in range(EACH)
                ]

            text = await cost_of(daemon, peer, signed("x" * SIZE))
            doubles = await cost_of(daemon, peer, signed([5e-324] * 65_000))
            assert doubles < RATIO * max(text, 0.1), (doubles, text)
            received = daemon.get("/v1/status")["counters"]
            assert received["received.say"] == 2 * EACH, received
