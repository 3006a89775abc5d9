"""The routes of the bridge: foreign messages in and out (docs/adapters/)."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from aghbus.daemon.api import queries as q
from aghbus.daemon.api.handlers import Call
from aghbus.daemon.api.route import Route
from aghbus.daemon.api.service import Service
from aghbus.protocol.adapters.attachments import MAX_MESSAGE_BYTES
from aghbus.protocol.api import bridge as bridge_api
from aghbus.protocol.api.messages import Event

_MAX_BODY: Final = 2 * MAX_MESSAGE_BYTES
"""Bytes, ours: the largest message as a string, whose quotes and line ends are escaped."""


class ByFormat(q.Query, frozen=True):
    """One of the foreign formats."""

    format: bridge_api.Format


class ByFormatSeq(q.Query, frozen=True):
    """One message of a format by the local sequence of its envelope."""

    format: bridge_api.Format
    seq: q.Seq


class StreamQuery(q.Query, frozen=True):
    """Messages after `since`, without it after what was acknowledged."""

    since: q.Since | None = None


async def submit(
    service: Service, call: Call[ByFormat, Any, bridge_api.BridgeSubmitRequest]
) -> bridge_api.BridgeSubmitResponse:
    """A foreign message of our own agent onto the bus."""
    return await service.bridge_submit(call.path.format, call.ask)


def stream(
    service: Service, call: Call[ByFormat, StreamQuery, Any]
) -> AsyncIterator[Sequence[Event | bridge_api.BridgeMessage]]:
    """The stream. As for events, `Last-Event-ID` goes before `since`."""
    since = call.query.since if call.resume_from is None else call.resume_from
    return service.bridge_stream(call.path.format, since)


async def message(service: Service, call: Call[ByFormatSeq, Any, Any]) -> bridge_api.BridgeMessage:
    """The foreign form of one envelope."""
    return await service.bridge_message(call.path.format, call.path.seq)


async def ack(service: Service, call: Call[ByFormat, Any, bridge_api.BridgeAckRequest]) -> bridge_api.BridgeAckResponse:
    """Our agent has everything up to a sequence."""
    return await service.bridge_ack(call.path.format, call.ask)


async def log(service: Service, call: Call[ByFormat, q.LimitQuery, Any]) -> bridge_api.BridgeLogResponse:
    """The newest rows of the format's own log."""
    return await service.bridge_log(call.path.format, limit=call.query.limit)


BRIDGE_ROUTES: Final = (
    Route(
        "POST",
        "/v1/bridge/{format}",
        "Hand over a foreign message",
        bridge_api.BridgeSubmitResponse,
        submit,
        parameters=ByFormat,
        ask=bridge_api.BridgeSubmitRequest,
        status=201,
        errors=(
            "message_refused",
            "conflict",
            "refused",
            "work_closed",
            "work_container_mismatch",
            "actor_not_allowed",
            "invalid_transition",
        ),
        max_body=_MAX_BODY,
    ),
    Route(
        "GET",
        "/v1/bridge/{format}/stream",
        "Server-sent foreign messages",
        bridge_api.BridgeMessage,
        stream=stream,
        parameters=ByFormat,
        query=StreamQuery,
    ),
    Route(
        "GET",
        "/v1/bridge/{format}/messages/{seq}",
        "The foreign form of one envelope",
        bridge_api.BridgeMessage,
        message,
        parameters=ByFormatSeq,
        errors=("not_found",),
    ),
    Route(
        "POST",
        "/v1/bridge/{format}/ack",
        "Everything up to a sequence was received",
        bridge_api.BridgeAckResponse,
        ack,
        parameters=ByFormat,
        ask=bridge_api.BridgeAckRequest,
    ),
    Route(
        "GET",
        "/v1/bridge/{format}/log",
        "The format's own log, oldest row first",
        bridge_api.BridgeLogResponse,
        log,
        parameters=ByFormat,
        query=q.LimitQuery,
    ),
)
"""In the order of the documentation."""
