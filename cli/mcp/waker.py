"""Wakes the host's session when messages for its agent arrive, and reports the session to the daemon.

One thread follows the event stream of the daemon. Another one looks at the inbox when it is time to (notices.py), tells the host in
the best available way (rungs.py), and reports. Both outlive restarts of the daemon.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence

from aghbus.cli.app.text import safe, span
from aghbus.cli.mcp.background import terminals
from aghbus.cli.mcp.notices import COLLECT_SECONDS, NEVER, OTHERS, WINDOW, Look, LoopGuard, Notices, Waiting, text_of
from aghbus.cli.mcp.rungs import ClaudeSocket, CodexQueue, Notification
from aghbus.cli.mcp.session import HostSession
from aghbus.client.api import Api
from aghbus.client.errors import ClientError
from aghbus.client.events import follow
from aghbus.protocol.base.annotations import Any
from aghbus.protocol.base.backoff import Backoff

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.cli.mcp.hook import HookListener

    Rung = ClaudeSocket | HookListener | CodexQueue | Notification

REPORT_SECONDS = 30.0
"""A session is reported so often at least, and forgotten by the daemon after three times as long, with what it has leased."""
_FRESH, _OLDEST = 50, 10  # messages of one look
_MAX_PAGES = 20
_ENDED = ("completed", "failed", "canceled")  # states of works
FOLLOWED_SECONDS = 20.0
"""How long after its last look at a task a host counts as following it."""
_CLOSING_SECONDS = 1.0


class Waker:
    """The notices of one session. It begins with the first call of `changed`, after `attach`."""

    def __init__(
        self, connect: Callable[[], Api], session_id: str, note: Callable[[str], None], *, contacts: bool
    ) -> None:
        """`note` tells a person. `contacts`: only they wake the session."""
        self._connect = connect
        self._id = session_id
        self._note = note
        self._contacts = contacts
        self._notices = Notices(LoopGuard())
        self._condition = threading.Condition()
        self._rungs: Sequence[Rung] = ()
        self._session: HostSession | None = None
        self._report_at = 0.0
        self._reporting = threading.Lock()  # a report that is being sent never overtakes the last one
        self._closed = False
        self._started_ms = _now_ms()
        self._called_ms: int | None = None
        self._host_pid = os.getppid()
        self._is_open = True
        self._changed: tuple[object, int] = (None, 0)  # what is reported of the notice, and since when (Unix ms)
        self._unanswered: dict[str, int] = {}  # notices by way
        self._said_none = False
        self._started = False
        self._tasks: dict[str, float] = {}  # works that the host follows, and until when (NEVER: it got the end)

    # called by other threads

    def changed(self) -> None:
        """The facts about the host changed: perhaps it can be woken now."""
        with self._condition:
            self._start()
            self._report_at = 0.0
            self._notices.look_soon(time.monotonic())
            self._condition.notify_all()

    def tool(self, name: str, answered: bool) -> None:
        """The session called a tool, or got its answer."""
        with self._condition:
            now = time.monotonic()
            if not answered:
                self._called_ms = _now_ms()
                self._report_at = min(self._report_at, now + COLLECT_SECONDS)
            if name == "inbox" and self._notices.how is not None:
                self._unanswered.pop(self._notices.how, None)
            if name == "inbox":
                self._notices.fetched(now) if answered else self._notices.fetching()
            elif answered and self._notices.state == "fetched":
                self._notices.look_soon(now, COLLECT_SECONDS)  # perhaps all are acknowledged
            self._condition.notify_all()

    def task(self, work_id: str, ended: bool) -> None:
        """The host got the state of a work that it follows as a task: it begins a turn by itself at the end."""
        with self._condition:
            self._tasks[work_id] = NEVER if ended else time.monotonic() + FOLLOWED_SECONDS
            if ended:
                self._notices.look_soon(time.monotonic())
                self._condition.notify_all()

    def attach(self, session: HostSession, rungs: Sequence[Rung]) -> None:
        """The session, and the ways to wake it, best first."""
        self._session, self._rungs = session, rungs

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for work in (self._follow, self._run):
                threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        """The session ended: tell the daemon, if it is there."""
        if not self._started:
            return
        self._closed = True
        try:
            api = self._connect()
            api.timeout = _CLOSING_SECONDS
            self._report(api, expires_in=0.0)
        except ClientError:
            pass  # it forgets the session later

    # the event stream

    def _follow(self) -> None:
        pauses = Backoff(0.2, 5.0)
        since: int | None = None
        while True:
            try:
                api = self._connect()
                if since is None:
                    since = api.get("/v1/messages", [("last", True), ("limit", 1)])["next_since"]
                self.changed()
                for event in follow(api, [("inbox", True)], since, lambda _: self.changed()):
                    pauses.reset()
                    since = event["seq"]
                    if event["type"] == "envelope":
                        self._arrived(event["seq"])
            except ClientError:
                time.sleep(pauses.next())

    def _arrived(self, seq: int) -> None:
        with self._condition:
            self._notices.arrived(seq, time.monotonic())
            self._condition.notify_all()

    # notices

    def _run(self) -> None:
        pauses = Backoff(0.2, 5.0)
        while True:
            with self._condition:
                while (left := min(self._notices.due, self._report_at) - time.monotonic()) > 0:
                    self._condition.wait(min(left, threading.TIMEOUT_MAX))
                due = self._notices.due <= time.monotonic()
                if due:
                    self._notices.looking()
            try:
                api = self._connect()
                if due:
                    self._look(api)
                self._report(api, REPORT_SECONDS * 3)
                pauses.reset()
            except ClientError:
                time.sleep(pauses.next())
                if due:
                    self.changed()

    def _look(self, api: Api) -> None:
        """Look at the inbox, and tell the host if it is time to."""
        now = time.monotonic()
        with self._condition:
            self._tasks = {work_id: until for work_id, until in self._tasks.items() if until > now}
            followed = dict(self._tasks)
        held = self._notices.guard.held_back(now)
        own = f"lease_{self._id}_"
        look, ends = look_at(api, self._notices.covered, held, followed, own, contacts=self._contacts)
        look.before = self._sessions_before(api)
        for work_id, seq in ends.items():
            if followed[work_id] == NEVER:
                api.post(f"/v1/inbox/{seq}/ack", {})
        with self._condition:
            for work_id in ends:
                if followed[work_id] == NEVER:
                    self._tasks.pop(work_id, None)
                else:
                    self._notices.look_soon(followed[work_id])  # the end is told if the host does not ask for it
            causes = self._notices.causes(look, time.monotonic())
            self._report_at = 0.0
        if not causes:
            return
        how = self._tell(text_of(look, self._notices.number)) if self._is_open else None
        with self._condition:
            limited = self._notices.told(look, causes, how, time.monotonic())
        for peer in limited:
            self._note(
                f"{safe(peer)} woke this session too often: those messages wait for {span(WINDOW)} without a notice"
            )
        if how is None and self._is_open and not self._said_none:
            self._said_none = True
            self._note("messages wait, and there is no way to tell this host: see docs/mcp.md")

    def _others(self, api: Api) -> list[dict[str, Any]]:
        """The other sessions of the daemon."""
        return [each for each in api.get("/v1/mcp/sessions")["sessions"] if each["id"] != self._id]

    def _sessions_before(self, api: Api) -> int:
        """How many sessions are told before this one: those that called a tool later, and can be woken."""
        others, mine = self._others(api), self._called_ms or 0
        self._is_open = self._has_terminal(others)
        return sum(each["open"] and bool(each["wakes_by"]) and (each["called_ms"] or 0) > mine for each in others)

    def _has_terminal(self, others: list[dict[str, Any]]) -> bool:
        """Whether a person can see this session. Nobody says which session a terminal of Codex's background server shows: the
        terminals are taken to show the sessions that were used last."""
        assert self._session is not None
        count = terminals(self._session.env)
        if count is None:
            return True
        mine = self._called_ms or self._started_ms
        used: list[int] = [
            each["called_ms"] or each["started_ms"] for each in others if each["host_pid"] == self._host_pid
        ]
        return sum(each > mine for each in used) < count

    def _tell(self, notice: str) -> str | None:
        """Tell the host in the first way that works. One that the session did not answer by a fetch comes last from now on: no way
        says that the host accepted a notice, and Claude Code may hold those of its socket for approval."""
        if self._notices.state == "noticed" and self._notices.how is not None:
            self._unanswered[self._notices.how] = self._unanswered.get(self._notices.how, 0) + 1
        ways = sorted(self._rungs, key=lambda rung: self._unanswered.get(rung.name, 0))
        return next((rung.name for rung in ways if rung.available() and rung.tell(notice)), None)

    # reports

    def _report(self, api: Api, expires_in: float) -> None:
        assert self._session is not None
        was_open = self._is_open
        if expires_in and terminals(self._session.env) is not None:
            self._is_open = self._has_terminal(self._others(api))
        with self._condition:
            if self._is_open and not was_open:
                self._notices.look_soon(time.monotonic())
            self._report_at = time.monotonic() + REPORT_SECONDS
            body = {
                "host": self._session.host,
                "host_version": self._session.version,
                "host_pid": self._host_pid,
                "open": self._is_open,
                "called_ms": self._called_ms,
                "wakes_by": [rung.name for rung in self._rungs if rung.available()],
                "held_back": self._notices.guard.held_back(time.monotonic())[:100],
                "notice": self._notice(),
                "expires_in": expires_in,
            }
        try:
            with self._reporting:
                if expires_in and self._closed:
                    return
                api.put(f"/v1/mcp/sessions/{self._id}", body)
        except ClientError:
            self._report_at = 0.0
            raise

    def _notice(self) -> dict[str, Any] | None:
        notices = self._notices
        if not notices.state:
            return None
        kept = (notices.state, notices.attempts, notices.through)
        if self._changed[0] != kept:
            self._changed = (kept, _now_ms())
        return {
            "state": notices.state,
            "how": notices.how,
            "messages": notices.messages,
            "through": notices.through,
            "attempts": notices.attempts,
            "changed_ms": self._changed[1],
        }


def look_at(
    api: Api, covered: int, held_back: Sequence[str], followed: Collection[str], own: str, *, contacts: bool
) -> tuple[Look, dict[str, int]]:
    """The inbox now, or what contacts have there. Of the messages after `covered`, the first page that is not only of peers that
    are held back. The ends of works that are `followed` are left out: their sequences by work, the second result. `own` is the
    beginning of this session's leases."""
    chosen, ends = ("contacts", contacts), dict[str, int]()

    def waiting(page: dict[str, Any]) -> list[Waiting]:
        items = [_item(item, item["message"], own) for item in page["items"]]
        found = {each.work_id: each.seq for each in items if each.is_end and each.work_id in followed}
        ends.update({work_id: seq for work_id, seq in found.items() if work_id is not None})
        return [each for each in items if each.seq not in found.values()]

    found = api.get("/v1/inbox", [("state", ["ready", "leased"]), ("limit", _OLDEST), chosen])
    oldest = waiting(found)
    since, fresh = covered, list[Waiting]()
    for _ in range(_MAX_PAGES):
        page = api.get("/v1/inbox", [("state", "ready"), ("since", str(since)), ("limit", _FRESH), chosen])
        fresh = waiting(page)
        if page["next_since"] is None or any(each.cause not in held_back for each in fresh):
            break
        since = page["next_since"]
    others = page["others"] if contacts else 0  # of the last page: `fresh` and the numbers are of one moment
    return Look(max(1, page["counts"]["ready"] - others), fresh, oldest, others), ends


def _item(item: dict[str, Any], message: dict[str, Any], own: str) -> Waiting:
    state = "held" if item["state"] == "leased" and not str(item["lease"]).startswith(own) else item["state"]
    cause = OTHERS if item["lane"] == "other" else message["sender"]
    ended = message["kind"] in ("trace", "receipt") and item["state"] == "ready" and item["work_state"] in _ENDED
    return Waiting(item["seq"], cause, message["work_id"], state, is_end=ended)


def _now_ms() -> int:
    return int(time.time() * 1000)
