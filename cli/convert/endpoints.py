"""Finds sender, receiver and work of a foreign message, where the message names them (adapters.md, ways in and out).

Online the daemon knows its own peer and its works. Offline they come from the message, or from the options.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from aghbus.protocol.formats.model import AgentMap, Finding, MessageHistory

_USER = "user"  # sentient: the name of a person, not for an agent


class Endpoints(NamedTuple):
    """Sender and receiver of a message. `own` and `other` are peers; None where it names no agent, or an unmapped one.

    `reports`: it is about an assigned work of its agent. `key` is foreign id and scope of the message that it answers.
    """

    own: str | None = None
    other: str | None = None
    reports: bool = False
    key: tuple[str, str] | None = None


def find_endpoints(format: str, message: Any, agents: AgentMap) -> Endpoints:
    """The endpoints that `message` names; none where it does not have the format's shape (the adapter reports that)."""
    if format == "sacp":
        return Endpoints(reports=True)
    if not isinstance(message, dict):
        return Endpoints()
    if format == "sentient":
        return _sentient(message, agents)
    return _agentos(message, agents) if format == "agentos" else Endpoints(reports="recommendation" in message)


def answers_earlier_line(ends: Endpoints, history: MessageHistory) -> bool:
    """Whether an earlier line has the message that this one answers, in any scope: a session may be invented."""
    return ends.key is not None and history.find(ends.key[0]) is not None


def _sentient(message: dict[str, Any], agents: AgentMap) -> Endpoints:
    metadata = _object(message, "metadata")
    parent = _text(metadata, "parent_message_id")
    name, source = _text(_object(message, "agent"), "name"), _text(_object(message, "input"), "source")
    return Endpoints(
        own=_known(agents.peer_of(name, "")) if name is not None else None,
        other=_known(agents.peer_of(source, "")) if source not in (None, _USER) else None,
        reports=parent is not None or _text(_object(message, "status"), "code") == "pending",
        key=(parent, _text(metadata, "session_id") or "") if parent is not None else None,
    )


def _agentos(message: dict[str, Any], agents: AgentMap) -> Endpoints:
    replied, kind = _text(message, "replyTo"), message.get("type")
    return Endpoints(
        own=_agent(message.get("from"), agents),
        other=_agent(message.get("to"), agents),
        reports=kind == "response" or (kind in ("validation", "error") and replied is not None),
        key=(replied, "") if replied is not None else None,
    )


def _agent(value: Any, agents: AgentMap) -> str | None:
    from aghbus.protocol.formats.agentos.agents import peer_of
    from aghbus.protocol.formats.agentos.message import AgentIdentifier

    try:
        return _known(peer_of(msgspec.convert(value, AgentIdentifier), agents, ""))
    except msgspec.ValidationError:
        return None


def _known(peer: str | Finding) -> str | None:
    return peer if isinstance(peer, str) else None


def _object(message: dict[str, Any], key: str) -> dict[str, Any]:
    value = message.get(key)
    return value if isinstance(value, dict) else {}


def _text(message: dict[str, Any], key: str) -> str | None:
    value = message.get(key)
    return value if isinstance(value, str) else None
