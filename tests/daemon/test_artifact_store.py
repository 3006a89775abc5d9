"""Artifacts in a real object store: what other tools wrote, what untrusted peers forged, what got lost."""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import nats
import nats.js.api
import pytest

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.config.settings import ArtifactSettings
from aghbus.daemon.nats.link import Link
from aghbus.protocol.api.artifacts import Artifact
from aghbus.protocol.api.queries import ArtifactsQuery
from aghbus.protocol.base.errors import InvalidRequest, NotFound, Refused, RequestError, Unavailable
from tests.support.links import to, up
from tests.support.natsutil import NatsServer, wait_until

BUCKET = "AGH_ARTIFACTS_V0"
IN_PLACE = {"Nats-Rollup": "sub"}
"""Headers of a message that replaces the earlier ones of its subject."""


@contextlib.asynccontextmanager
async def connected(server: NatsServer, name: str, **settings: Any) -> AsyncIterator[tuple[Artifacts, Link]]:
    async with up(Link(to(server), name=name)) as link:
        yield Artifacts(link, name, lambda: ArtifactSettings(**settings)), link


@contextlib.asynccontextmanager
async def store(server: NatsServer, name: str = "ops", **settings: Any) -> AsyncIterator[Artifacts]:
    async with connected(server, name, **settings) as (artifacts, _link):
        yield artifacts


@contextlib.asynccontextmanager
async def foreign(server: NatsServer) -> AsyncIterator[Any]:
    """Another tool on the same broker: the client library's own JetStream context."""
    client = await nats.connect(server.url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


async def whole(artifacts: Artifacts, work_id: str, name: str) -> tuple[Artifact, bytes]:
    described, content = await artifacts.get(work_id, name)
    return described, b"".join([piece async for piece in content])


async def messages(js: Any) -> int:
    return int((await js.stream_info(f"OBJ_{BUCKET}")).state.messages)


@pytest.mark.parametrize("size", [0, 1, 262_143, 262_144, 262_145, 3_000_000])
async def test_content_is_returned_unchanged(server: NatsServer, size: int) -> None:
    content = os.urandom(size)
    async with store(server, "ops") as ours, store(server, "worker") as theirs:
        put = await ours.put("work_1", "a.bin", pieces(content[:100], content[100:]))
        assert put.uri == "agh://artifacts/work_1/a.bin"
        assert (put.size, put.digest) == (size, f"sha256:{hashlib.sha256(content).hexdigest()}")
        described, got = await whole(theirs, "work_1", "a.bin")
        assert got == content
        assert described == put and described.put_by == "ops"


async def test_artifacts_are_interchangeable_with_other_tools(server: NatsServer) -> None:
    content = os.urandom(600_000)
    async with store(server) as ours, foreign(server) as js:
        await ours.put("work_1", "ours", pieces(content))
        bucket = await js.object_store(BUCKET)
        got = await bucket.get("work_1/ours")
        assert got.data == content
        assert got.info.size == len(content)
        await bucket.put("work_1/theirs", content)
        described, read = await whole(ours, "work_1", "theirs")
        assert read == content and described.put_by is None
        listed = await ours.list_artifacts(ArtifactsQuery(work_id="work_1", limit=10))
        assert [row.name for row in listed.artifacts] == ["ours", "theirs"]


async def test_an_artifact_never_changes(server: NatsServer) -> None:
    async with store(server) as ours, foreign(server) as js:
        first = await ours.put("w", "n", pieces(b"one"))
        before = await messages(js)
        assert await ours.put("w", "n", pieces(b"o", b"ne")) == first
        with pytest.raises(Refused) as caught:
            await ours.put("w", "n", pieces(b"two"))
        assert caught.value.error_code == "conflict" and first.digest in caught.value.message
        assert (await whole(ours, "w", "n"))[1] == b"one"
        assert await messages(js) == before


async def test_of_two_concurrent_puts_one_wins_and_the_other_leaves_nothing(server: NatsServer) -> None:
    async with store(server, "a") as a, store(server, "b") as b, foreign(server) as js:
        await a.put("w", "other", pieces(b"x"))
        before = await messages(js)
        both_read = asyncio.Barrier(2)

        async def content(text: bytes) -> AsyncIterator[bytes]:
            yield text
            await both_read.wait()  # both have found the name free

        answers = await asyncio.gather(
            a.put("w", "n", content(b"a" * 300_000)), b.put("w", "n", content(b"b" * 300_000)), return_exceptions=True
        )
        losers = [answer for answer in answers if isinstance(answer, Refused)]
        assert len(losers) == 1 and losers[0].error_code == "conflict"
        (winner,) = [answer for answer in answers if not isinstance(answer, BaseException)]
        described, got = await whole(b, "w", "n")
        assert described.digest == winner.digest and len(got) == 300_000
        assert await messages(js) == before + 3, "two chunks and a description"


async def test_two_concurrent_puts_of_the_same_content_both_succeed(server: NatsServer) -> None:
    async with store(server, "a") as a, store(server, "b") as b:
        both_read = asyncio.Barrier(2)

        async def content() -> AsyncIterator[bytes]:
            yield b"same"
            await both_read.wait()

        first, second = await asyncio.gather(a.put("w", "n", content()), b.put("w", "n", content()))
        assert first.digest == second.digest


async def test_a_deleted_name_is_free_again(server: NatsServer) -> None:
    async with store(server) as ours, foreign(server) as js:
        await ours.put("w", "n", pieces(b"one"))
        await (await js.object_store(BUCKET)).delete("w/n")
        with pytest.raises(NotFound):
            await ours.get("w", "n")
        assert (await ours.list_artifacts(ArtifactsQuery(work_id="w", limit=10))).artifacts == []
        await ours.put("w", "n", pieces(b"two"))
        assert (await whole(ours, "w", "n"))[1] == b"two"


async def test_content_that_is_too_long_is_refused_and_leaves_nothing(server: NatsServer) -> None:
    async with store(server, max_bytes=1_000_000) as ours, foreign(server) as js:
        with pytest.raises(InvalidRequest) as caught:
            await ours.put("w", "n", pieces(*[bytes(300_000)] * 4))
        assert caught.value.error_code == "too_large"
        assert await messages(js) == 0
        await ours.put("w", "n", pieces(*[bytes(250_000)] * 4))


async def test_an_artifact_larger_than_our_limit_is_refused_before_reading(server: NatsServer) -> None:
    async with store(server) as theirs, store(server, max_bytes=10_000) as ours:
        await theirs.put("w", "n", pieces(bytes(10_001)))
        with pytest.raises(InvalidRequest) as caught:
            await ours.get("w", "n")
        assert caught.value.error_code == "too_large" and "artifacts.max_bytes" in caught.value.hint


async def test_an_aborted_upload_leaves_nothing(server: NatsServer) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield bytes(600_000)
        raise ConnectionError("gone")

    async with store(server) as ours, foreign(server) as js:
        with pytest.raises(ConnectionError):
            await ours.put("w", "n", broken())
        assert await messages(js) == 0
        with pytest.raises(NotFound):
            await ours.get("w", "n")


async def test_a_cancelled_put_does_not_wait_for_a_stalled_broker(server: NatsServer) -> None:
    stalled = asyncio.Event()

    async def content() -> AsyncIterator[bytes]:
        yield bytes(300_000)
        await server.pause()
        stalled.set()
        yield bytes(300_000)

    async with store(server) as ours:
        putting = asyncio.create_task(ours.put("w", "n", content()))
        await stalled.wait()
        putting.cancel()
        done, _ = await asyncio.wait({putting}, timeout=3)  # a purge that is not answered takes 5
        assert done and putting.cancelled()


async def test_missing_content_is_detected_before_the_last_piece(server: NatsServer) -> None:
    async with store(server) as ours, foreign(server) as js:
        await ours.put("w", "n", pieces(os.urandom(700_000)))
        info = await js.stream_info(f"OBJ_{BUCKET}")
        await js.delete_msg(f"OBJ_{BUCKET}", info.state.last_seq - 1)  # the last chunk
        _, content = await ours.get("w", "n")
        got = b""
        with pytest.raises(Unavailable, match="damaged"):
            async for piece in content:
                got += piece
        assert len(got) < 2 * 262_144 + 1


async def test_replaced_content_is_detected(server: NatsServer) -> None:
    async with store(server) as ours, foreign(server) as js:
        await ours.put("w", "n", pieces(b"true"))
        meta = f"$O.{BUCKET}.M.{base64.urlsafe_b64encode(b'w/n').decode()}"
        description = json.loads((await js.get_last_msg(f"OBJ_{BUCKET}", meta)).data)
        await js.purge_stream(f"OBJ_{BUCKET}", subject=f"$O.{BUCKET}.C.{description['nuid']}")
        await js.publish(f"$O.{BUCKET}.C.{description['nuid']}", b"lies")
        with pytest.raises(Unavailable, match="not that of its digest"):
            await whole(ours, "w", "n")


@pytest.mark.parametrize(
    "change",
    [
        {"nuid": "a.b"},
        {"nuid": ">"},
        {"nuid": ""},
        {"nuid": "x" * 65},
        {"nuid": 7},
        {"size": -1},
        {"size": "many"},
        {"digest": "MD5=abc"},
        {"digest": "SHA-256=abcd"},
        {"digest": "SHA-256=ä"},
        {"name": "w/other"},
        {"options": {"link": {"bucket": "OTHER", "name": "x"}}},
        {"metadata": {"put_by": 7}},
    ],
    ids=str,
)
async def test_a_forged_description_is_refused(server: NatsServer, change: dict[str, Any]) -> None:
    async with store(server) as ours, foreign(server) as js:
        await ours.put("w", "n", pieces(b"true"))
        meta = f"$O.{BUCKET}.M.{base64.urlsafe_b64encode(b'w/n').decode()}"
        description = json.loads((await js.get_last_msg(f"OBJ_{BUCKET}", meta)).data)
        await js.publish(meta, json.dumps({**description, **change}).encode(), headers=IN_PLACE)
        with pytest.raises(Unavailable, match="damaged"):
            await ours.get("w", "n")
        assert (await ours.list_artifacts(ArtifactsQuery(limit=10))).artifacts == [], (
            "one forged description does not spoil the list"
        )


async def test_a_later_description_replaces_nothing(server: NatsServer) -> None:
    async with store(server) as ours, foreign(server) as js:
        await ours.put("w", "n", pieces(b"true"))
        meta = f"$O.{BUCKET}.M.{base64.urlsafe_b64encode(b'w/n').decode()}"
        description = json.loads((await js.get_last_msg(f"OBJ_{BUCKET}", meta)).data)
        await js.publish(f"$O.{BUCKET}.C.other", b"lies")
        for change in ({"deleted": True}, {"nuid": "other"}):
            await js.publish(meta, json.dumps({**description, **change}).encode())
            assert (await whole(ours, "w", "n"))[1] == b"true"


async def test_a_malformed_description_is_refused(server: NatsServer) -> None:
    async with store(server) as ours, foreign(server) as js:
        await ours.put("w", "n", pieces(b"true"))
        meta = f"$O.{BUCKET}.M.{base64.urlsafe_b64encode(b'w/n').decode()}"
        for raw in (b"", b"{", b"[]", b"\xff", b"[" * 100_000):
            await js.publish(meta, raw, headers=IN_PLACE)
            with pytest.raises(Unavailable, match="damaged"):
                await ours.get("w", "n")


async def test_objects_with_other_names_are_not_listed(server: NatsServer) -> None:
    async with store(server) as ours, foreign(server) as js:
        await ours.put("work_2", "b", pieces(b"b"))
        await ours.put("work_1", "a", pieces(b"a"))
        await ours.put("work_1", "c", pieces(b"c"))
        bucket = await js.object_store(BUCKET)
        for name in ("plain", "a/b/c", "../up", "work_1/..", "work_1/x y"):
            await bucket.put(name, b"other")
        everything = await ours.list_artifacts(ArtifactsQuery(limit=10))
        assert [row.uri for row in everything.artifacts] == [
            f"agh://artifacts/{key}" for key in ("work_1/a", "work_1/c", "work_2/b")
        ]
        assert not everything.more
        assert [
            row.name for row in (await ours.list_artifacts(ArtifactsQuery(work_id="work_1", limit=1))).artifacts
        ] == ["a"]
        assert (await ours.list_artifacts(ArtifactsQuery(work_id="work_1", limit=1))).more
        assert (await ours.list_artifacts(ArtifactsQuery(work_id="work_3", limit=10))).artifacts == []


@pytest.mark.parametrize(
    ("work_id", "name"), [("..", "n"), ("w", ".."), ("w/x", "n"), ("w", ""), ("w", "a b"), ("", "n")]
)
async def test_names_with_path_separators_are_refused(server: NatsServer, work_id: str, name: str) -> None:
    async with store(server) as ours:
        with pytest.raises(InvalidRequest):
            await ours.put(work_id, name, pieces(b"x"))
        with pytest.raises(InvalidRequest):
            await ours.get(work_id, name)


async def test_without_a_bucket_the_list_is_empty(server: NatsServer) -> None:
    async with store(server) as ours:
        assert (await ours.list_artifacts(ArtifactsQuery(limit=10))).artifacts == []
        with pytest.raises(NotFound):
            await ours.get("w", "n")


async def test_a_bucket_is_created_with_the_limits_of_the_settings(server: NatsServer) -> None:
    async with store(server, max_age=7200, bucket_bytes=5 << 20) as ours, foreign(server) as js:
        await ours.put("w", "n", pieces(b"x"))
        config = (await js.stream_info(f"OBJ_{BUCKET}")).config
        assert (config.max_age, config.max_bytes) == (7200, 5 << 20)


async def test_a_full_bucket_is_a_clear_error_and_leaves_nothing(server: NatsServer) -> None:
    async with store(server, bucket_bytes=1 << 20) as ours, foreign(server) as js:
        with pytest.raises(Unavailable, match="full"):
            await ours.put("w", "n", pieces(*[os.urandom(300_000)] * 5))
        assert await messages(js) == 0
        await ours.put("w", "small", pieces(b"fits"))


async def test_a_broker_without_jetstream_is_a_clear_error() -> None:
    async with NatsServer() as server, store(server) as ours:
        calls: list[Any] = [
            lambda: ours.put("w", "n", pieces(b"x")),
            lambda: ours.get("w", "n"),
            lambda: ours.list_artifacts(ArtifactsQuery(limit=10)),
        ]
        for call in calls:
            with pytest.raises(Unavailable) as caught:
                await call()
            assert "JetStream" in caught.value.message and "enable it" in caught.value.hint


async def test_a_bucket_without_direct_gets_is_reported_with_a_hint(server: NatsServer) -> None:
    async with store(server) as ours, foreign(server) as js:
        await js.add_stream(
            nats.js.api.StreamConfig(name=f"OBJ_{BUCKET}", subjects=[f"$O.{BUCKET}.C.>", f"$O.{BUCKET}.M.>"])
        )
        with pytest.raises(Unavailable, match="--allow-direct"):
            await ours.get("w", "n")


async def test_a_lost_broker_is_a_clear_error(server: NatsServer) -> None:
    async with connected(server, "ops") as (ours, link):
        await ours.put("w", "n", pieces(bytes(1_000_000)))
        _, content = await ours.get("w", "n")
        assert await anext(content)
        server.kill()
        await wait_until(lambda: link.state == "down", 30, "the loss")
        with pytest.raises(RequestError, match="cannot be reached"):
            async for _ in content:
                pass
        with pytest.raises(Unavailable, match="cannot be reached"):
            await ours.list_artifacts(ArtifactsQuery(limit=10))
        await server.start()
        assert await link.wait_up(20)
        assert len((await whole(ours, "w", "n"))[1]) == 1_000_000
