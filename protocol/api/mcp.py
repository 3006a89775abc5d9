"""The local API: sessions of agent hosts, and the notices that wake them (docs/mcp.md)."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from aghbus.protocol.api.base import RequestModel, ResponseModel, Seq, seconds

Wake = Literal["claude-socket", "stop-hook", "codex-queue", "notification"]
NoticeState = Literal["stored", "noticed", "fetched", "acked"]

MAX_SESSION_SECONDS: Final = 3600.0
"""Seconds: a session that ended without a word is forgotten after that, at the latest."""

_Label = Annotated[str, Meta(max_length=128)]
_Peer = Annotated[str, Meta(max_length=256)]


class McpNotice(RequestModel):
    """The latest notice of a session: that messages wait, never what they say."""

    # `stored`: nothing could tell the host; `noticed`: the host was told, which need not mean that it accepted the notice;
    # `fetched`: the session called the tool `inbox` after it; `acked`: none of its messages is in the inbox any more
    state: NoticeState
    how: Wake | None  # the host was told last, null in `stored`
    messages: int  # that waited when the notice was made
    through: Seq  # the last message that it covers
    attempts: int  # how often the host was told
    changed_ms: int  # since when it is in this state


class McpSessionReport(RequestModel):
    """What a relay knows of its session."""

    host: _Label  # name of the host program
    host_version: _Label  # its version; may be empty
    host_pid: int  # the process that started the relay
    # false: its terminal was closed, and the host keeps the session in the background
    open: bool
    called_ms: int | None  # when it called a tool last, null before the first call
    wakes_by: Annotated[list[Wake], Meta(max_length=8)]  # the ways to wake it now, best first; empty when there is none
    # peers whose messages do not wake it for now, because they did so too often
    held_back: Annotated[list[_Peer], Meta(max_length=100)]
    notice: McpNotice | None  # the latest one, null when there was none
    # seconds until the session is forgotten unless it is reported again; 0 forgets it immediately
    expires_in: Annotated[float, seconds(0, MAX_SESSION_SECONDS)]


class McpSession(ResponseModel):
    """A session of an agent host."""

    id: str  # of the session
    host: str  # name of the host program
    host_version: str  # its version; may be empty
    host_pid: int  # the process that started the relay
    open: bool  # false: its terminal was closed, and the host keeps the session in the background
    called_ms: int | None  # when it called a tool last, null before the first call
    wakes_by: list[Wake]  # the ways to wake it now, best first; empty when there is none
    held_back: list[str]  # peers whose messages do not wake it for now, because they did so too often
    notice: McpNotice | None  # the latest one, null when there was none
    started_ms: int  # when it was reported first
    reported_ms: int  # when it was reported last


class McpSessionsResponse(ResponseModel):
    """Sessions of agent hosts."""

    sessions: list[McpSession]  # oldest first
