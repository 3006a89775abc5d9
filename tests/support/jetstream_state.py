"""State of streams and consumers, as an operator of the broker sees it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aghbus.daemon.jetstream.stream import STREAM
from aghbus.protocol.agh.identifiers import route_token
from aghbus.protocol.agh.nats.names import durable_name
from tests.support.jetstream import CHANNEL, WORKSPACE, Operator

if TYPE_CHECKING:
    pass


async def stream_info(api: Operator) -> dict[str, Any]:
    return await api.call(f"STREAM.INFO.{STREAM}")


async def consumer_info(api: Operator, peer: str) -> dict[str, Any]:
    return await api.call(f"CONSUMER.INFO.{STREAM}.{durable_name(WORKSPACE, CHANNEL, route_token(peer))}")


async def settled(api: Operator, peer: str) -> None:
    """Wait until the broker knows that `peer` has settled everything."""
    deadline = asyncio.get_running_loop().time() + 15
    while (info := await consumer_info(api, peer))["num_ack_pending"] or info["num_pending"]:
        assert asyncio.get_running_loop().time() < deadline, info
        await asyncio.sleep(0.01)
