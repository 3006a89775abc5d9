"""Sessions of agent hosts, as their relays report them. Kept in memory: a relay reports again after a restart."""

from typing import Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.services.session_leases import SessionLeases
from aghbus.protocol.api.mcp import McpSession, McpSessionReport, McpSessionsResponse
from aghbus.protocol.base.errors import InvalidRequest

MAX_SESSIONS: Final = 256
"""Beyond that the session whose report is the oldest is forgotten."""

RUNNING_SECONDS: Final = 120.0
"""How long after its last call of a tool the thread of a closed terminal counts as one that runs."""
_MAX_ID: Final = 128  # characters


class McpSessions:
    """The sessions of one daemon."""

    def __init__(self, clock: Clock, leases: SessionLeases) -> None:
        self._clock = clock
        self._leases = leases
        self._sessions: dict[str, tuple[float, McpSession]] = {}  # by id: when it ends (monotonic); latest report last

    async def report(self, session_id: str, report: McpSessionReport) -> McpSession:
        """Record one session, or what changed of it. What it has leased stays with it for as long as the report holds; when it
        ends, or its terminal was closed and it has called no tool for a while, that goes back."""
        if not 0 < len(session_id) <= _MAX_ID:
            raise InvalidRequest(f"id: must be 1 to {_MAX_ID} characters")
        now, now_ms = self._clock.monotonic(), self._clock.millis()
        _, known = self._sessions.pop(session_id, (0.0, None))
        session = McpSession(
            id=session_id,
            host=report.host,
            host_version=report.host_version,
            host_pid=report.host_pid,
            open=report.open,
            called_ms=report.called_ms,
            wakes_by=report.wakes_by,
            held_back=report.held_back,
            notice=report.notice,
            started_ms=known.started_ms if known else now_ms,
            reported_ms=now_ms,
        )
        self._forget_expired(now)
        runs = report.open or now_ms - (report.called_ms or 0) < RUNNING_SECONDS * 1000
        await self._leases.keep(session_id, report.expires_in if runs else 0.0)
        if report.expires_in:
            while len(self._sessions) >= MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[session_id] = (now + report.expires_in, session)
        return session

    async def list_sessions(self) -> McpSessionsResponse:
        """Every session that has not expired."""
        self._forget_expired(self._clock.monotonic())
        found = [session for _, session in self._sessions.values()]
        return McpSessionsResponse(sessions=sorted(found, key=lambda session: (session.started_ms, session.id)))

    def _forget_expired(self, now: float) -> None:
        for session_id in [each for each, (end, _) in self._sessions.items() if end <= now]:
            del self._sessions[session_id]
