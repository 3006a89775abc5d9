"""Content in and out over the API: streamed, bounded, and never half a file that looks like a whole one."""

import asyncio
import hashlib
import http.client
import os
from collections.abc import AsyncIterator

import pytest

from aghbus.protocol.api.artifacts import Artifact
from aghbus.protocol.api.queries import ArtifactsQuery
from aghbus.protocol.base.errors import Refused, Unavailable
from tests.support.api_harness import Api
from tests.support.natsutil import wait_until


async def test_content_is_returned_with_size_and_digest(api: Api) -> None:
    content = os.urandom(700_000)
    put = await api.request("PUT", "/v1/artifacts/work_1/report.bin", content)
    assert put.status == 201
    assert put.json["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    got = await api.get("/v1/artifacts/work_1/report.bin")
    assert got.status == 200 and got.body == content
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["artifact-size"] == "700000"
    assert got.headers["artifact-digest"] == put.json["digest"]
    assert got.headers["x-content-type-options"] == "nosniff"
    listed = await api.get("/v1/artifacts?work=work_1&limit=5")
    assert [row["uri"] for row in listed.json["artifacts"]] == ["agh://artifacts/work_1/report.bin"]
    assert ("GET /v1/artifacts", (ArtifactsQuery(work_id="work_1", limit=5),)) in api.node.calls


async def test_empty_content_is_stored_and_returned(api: Api) -> None:
    assert (await api.request("PUT", "/v1/artifacts/w/empty", b"")).json["size"] == 0
    got = await api.get("/v1/artifacts/w/empty")
    assert (got.status, got.body, got.headers["artifact-size"]) == (200, b"", "0")


async def test_content_may_be_longer_than_a_json_body_and_of_any_type(api: Api) -> None:
    reply = await api.request("PUT", "/v1/artifacts/w/n", b"x" * 900_000, {"content-type": "text/plain"})
    assert reply.status == 201


async def test_the_client_gets_the_error_for_too_long_content(api: Api) -> None:
    reply = await api.request("PUT", "/v1/artifacts/w/n", b"x" * 20_000_000)
    assert (reply.status, reply.json["code"]) == (413, "too_large")
    assert reply.headers["connection"] == "close"


async def test_the_client_gets_an_error_raised_before_the_body_was_read(api: Api) -> None:
    api.node.failure = Unavailable("no JetStream", hint="enable it")
    api.node.max_content = 1 << 40
    reply = await api.request("PUT", "/v1/artifacts/w/n", b"x" * 5_000_000)
    assert (reply.status, reply.json["hint"]) == (503, "enable it")


async def test_an_error_after_the_whole_body_is_sent_immediately(api: Api) -> None:
    """Nothing more is waited for: the server gives a body ten seconds here."""
    api.node.failure = Refused("exists with other content", code="conflict")
    async with asyncio.timeout(20):
        reply = await api.request("PUT", "/v1/artifacts/w/n", b"x" * 10)
    assert (reply.status, reply.json["code"]) == (409, "conflict")


async def test_a_body_that_stops_arriving_times_out(impatient_api: Api) -> None:
    reader, _ = await impatient_api.raw(b"PUT /v1/artifacts/w/n HTTP/1.1\r\nhost: d\r\ncontent-length: 10\r\n\r\nabc")
    assert b" 408 " in await reader.readline()
    assert "w/n" not in impatient_api.node.content


async def test_a_client_that_disconnects_stores_nothing(api: Api) -> None:
    _, writer = await api.raw(b"PUT /v1/artifacts/w/n HTTP/1.1\r\nhost: d\r\ncontent-length: 10\r\n\r\nabc")
    writer.close()
    await writer.wait_closed()
    await wait_until(lambda: not api.server.requests)
    assert api.node.content == {}


async def test_content_that_fails_immediately_gets_an_error_response(api: Api) -> None:
    api.node.content["w/n"] = []
    api.node.content_failure = Unavailable("the artifact is damaged: missing", hint="again")
    reply = await api.get("/v1/artifacts/w/n")
    assert (reply.status, reply.json["hint"]) == (503, "again")


async def test_content_that_fails_midway_ends_without_the_end_of_its_body(api: Api) -> None:
    api.node.content["w/n"] = [b"first", b"second"]
    api.node.content_failure = Unavailable("the artifact is damaged: missing")
    with pytest.raises(http.client.IncompleteRead):
        await api.get("/v1/artifacts/w/n")
    api.node.content_failure = None
    assert (await api.get("/v1/artifacts/w/n")).body == b"firstsecond", "the server goes on"


async def test_a_missing_artifact_is_404(api: Api) -> None:
    assert (await api.get("/v1/artifacts/w/n")).status == 404
    assert (await api.request("DELETE", "/v1/artifacts/w/n")).status == 405
    assert (await api.get("/v1/artifacts/w")).status == 404


async def test_content_arrives_while_it_is_still_being_sent(api: Api) -> None:
    """The service gets the first piece before the client has sent the last."""
    seen: list[bytes] = []
    arrived = asyncio.Event()

    async def watched(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in content:
            seen.append(piece)
            arrived.set()
            yield piece

    async def watching(work_id: str, name: str, content: AsyncIterator[bytes]) -> Artifact:
        return await api.node.put_artifact(work_id, name, watched(content))

    api.node.respond["PUT /v1/artifacts/{work_id}/{name}"] = watching
    reader, writer = await api.raw(b"PUT /v1/artifacts/w/n HTTP/1.1\r\nhost: d\r\ncontent-length: 6\r\n\r\nabc")
    await asyncio.wait_for(arrived.wait(), 10)
    assert b"".join(seen) == b"abc"
    writer.write(b"def")
    assert b" 201 " in await reader.readline()
    assert b"".join(api.node.content["w/n"]) == b"abcdef"
