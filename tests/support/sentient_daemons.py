"""The agents of the Sentient platform on six daemons, and the user on a seventh.

Each test uses sessions and days of its own, so that a day's log has the entries of one test. Expected log entries are
written by hand from the layout of the seed (Log Entry Format).
"""

import contextlib
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from aghbus.daemon.base.failpoints import VARIABLE
from tests.support.bridging import (
    NO_ERROR,
    WITHIN,
    agent_map,
    broker,
    daemons,
    found,
    handed_out,
    same_json,
    submit,
    the_say,
)
from tests.support.daemons import Daemon, HttpError, wait_for

PEERS: Final = {
    "objective_agent": "objective",
    "goal_agent": "goal",
    "planning_agent": "planning",
    "sentiment agent": "executional",
    "final_output_agent": "final",
    "memory_agent": "memory",
}
TYPES: Final = {"objective_agent": "governance", "goal_agent": "governance", "sentiment agent": "executional"}
QUICK: Final = ("--retry-first", "100ms", "--retry-ceiling", "500ms")  # as daemons of the tests die and come back
LATE: Final = [("/timestamp/executed_at", "clock_skew", "warning")]  # the days of the tests are not today
SOURCE: Final = {
    "ref_id": "src_1",
    "url": "https://example.com/watch?v=a,b",
    "platform": "web",
    "media_type": "video",
    "provided_by": "user",
    "extracted_at_sequence": 1,
}
STORED: Final = {
    "ref_id": "store_1",
    "source_ref_id": "src_1",
    "storage_uri": None,
    "storage_backend": "wasabi",
    "media_type": "video",
    "created_at_sequence": None,
    "status": "pending",
}
DERIVED: Final = [
    {
        "ref_id": f"derived_{number}",
        "parent_ref_id": "store_1",
        "storage_uri": None,
        "asset_type": asset,
        "capability_id": "CAP-AUD-001",
        "created_at_sequence": None,
        "status": "pending",
    }
    for number, asset in ((1, "audio_track"), (2, "transcript"))
]
FAILED: Final = {
    "has_error": True,
    "error_code": "DEPENDENCY_ERROR",
    "error_message": "store_1 was never stored",
    "retry_count": 2,
    "recoverable": True,
}


class Six(NamedTuple):
    """The daemons by peer id, and the folder below which each writes its logs."""

    at: dict[str, Daemon]
    root: Path

    def log(self, peer: str, day: str) -> str | None:
        """What a daemon has logged for a day; None without a file."""
        file = self.root / peer / "system" / "logs" / f"{day}.log"
        return file.read_text("utf-8") if file.exists() else None

    def logs(self, peer: str, day: str, text: str) -> None:
        """Fails unless the file of the day becomes exactly `text`."""
        wait_for(lambda: len(self.log(peer, day) or "") >= len(text), WITHIN, f"the log of {peer}")
        assert self.log(peer, day) == text

    def told(self, session: str) -> list[Any]:
        """The says at the memory agent's daemon that have entries of a session, once nobody has more to send."""
        for peer, daemon in self.at.items():
            wait_for(partial(at_rest, daemon), WITHIN, f"{peer} to come to rest")
        listed = self.at["memory"].get("/v1/messages?direction=in&kind=say&limit=500")["messages"]
        return [one for one in listed if f"[SESSION_ID: {session}]\n" in one["envelope"]["body"]["text"]]


def at_rest(daemon: Daemon) -> bool:
    """Whether nothing of our conversation is on its way to another peer."""
    listed = daemon.get("/v1/messages?direction=out&limit=500")["messages"]
    return not [one for one in listed if one["kind"] != "receipt" and one["delivery"] in ("queued", "published")]


@contextlib.contextmanager
def six_daemons(root: Path, *flags: str) -> Iterator[Six]:
    """The daemons, stopped and checked for internal errors at the end; `flags` are for all but the user's."""
    map_ = (*agent_map(PEERS), "--log-level", "info", *flags)
    given = {
        peer: (*map_, *QUICK, "--sentient-memory-agent", "memory", "--sentient-log-root", str(root / peer))
        for peer in PEERS.values()
    }
    with broker() as url, daemons(root / "home", url, {**given, "desk": QUICK}) as made:
        yield Six(made, root)
        for daemon in made.values():
            counters = daemon.get("/v1/status")["counters"]
            assert not {"internal_errors", "bridge.terminal_not_forwarded"} & counters.keys()
            assert "Traceback" not in daemon.log.read_text()


def link(agent: str, following: str | None, at: str, **more: Any) -> dict[str, Any]:
    """A message of an agent, executed `at`; `more` replaces groups, and members of `metadata`."""
    metadata = {"session_id": "s", "request_id": "r", "sequence_number": 1, "parent_message_id": None}
    metadata.update({key: more.pop(key) for key in list(metadata) if key in more})
    return {
        "message_id": more.pop("message_id"),
        "timestamp": {"executed_at": at, "timezone": "Asia/Singapore"},
        "agent": {"name": agent, "type": TYPES.get(agent, "operational")},
        "input": {"source": "user", "content": "Find out"},
        "output": {"content": f"what {agent} says", "content_type": "plan"},
        "next_agent": {"name": following, "reason": "it is next"},
        "status": {"code": "success", "message": f"{agent} is done"},
        "error": NO_ERROR,
        "metadata": metadata,
        "resources": {"source_refs": [], "storage_refs": [], "derived_refs": []},
        "audit": {
            "compliance_notes": "in scope",
            "governance_files_consulted": ["context/governance/audit.md"],
            "reasoning": "Because the rules of context/governance/audit.md say so.",
        },
        **more,
    }


class Step(NamedTuple):
    """The result of one submission: the API's answer, and the message for the next agent."""

    answer: Any
    handed: Any


def step(six: Six, message: dict[str, Any], to: str, **more: Any) -> Step:
    """Submit a message at its agent's daemon, and read it at the daemon of the next one."""
    answer = submit(six.at[PEERS[message["agent"]["name"]]], "sentient", message, **more)
    return Step(answer, handed_out(six.at[to], "sentient", the_say(answer)["id"]))


def asked(six: Six, session: str, request: str) -> tuple[str, Any]:
    """The user's request to the objective agent: the id of its work, and the delivered message."""
    opened = six.at["desk"].post(
        "/v1/works", to="objective", text="How does she feel?", thread_id=session, trace_id=request
    )
    handed = handed_out(six.at["objective"], "sentient", opened["id"])
    assert handed["native"] is True
    assert handed["message"]["metadata"]["session_id"] == session
    assert handed["message"]["metadata"]["request_id"] == request
    return opened["work_id"], handed


def is_in(daemon: Daemon, work_id: str, state: str) -> bool:
    """Whether a work has this state here."""
    return daemon.state_of(work_id) == state


def passed_on(
    six: Six, session: str, request: str, day: str, upto: int, *, native: bool = True
) -> tuple[str, list[Step], list[dict[str, Any]]]:
    """A request, and the first `upto` plain messages of its chain: the user's work, the steps and the messages.

    `native` False: no peer requested it, so there is no work of the user.
    """
    work_id = asked(six, session, request)[0] if native else ""
    names = list(PEERS)
    steps: list[Step] = []
    sent: list[dict[str, Any]] = []
    for number in range(1, upto + 1):
        message = plain(names[number - 1], names[number], session, request, number, day)
        step_ = step(six, message, PEERS[names[number]])
        assert same_json(step_.handed["message"], message)
        steps.append(step_)
        sent.append(message)
    return work_id, steps, sent


def plain(agent: str, following: str | None, session: str, request: str, number: int, day: str, **more: Any) -> Any:
    """Message `number` of a chain without anything special."""
    at = f"{day[:4]}-{day[4:6]}-{day[6:]}T10:00:0{number}Z"
    parent = None if number == 1 else f"{session}-{number - 1}"
    return link(
        agent,
        following,
        at,
        message_id=f"{session}-{number}",
        session_id=session,
        request_id=request,
        sequence_number=number,
        parent_message_id=parent,
        **more,
    )


def entry(agent: str, session: str, number: int, status: str = "success", fault: str = "") -> str:
    """The log entry of a plain message."""
    return (
        f"[TIMESTAMP: 10:00:0{number}]\n"
        f"[AGENT: {agent}]\n"
        "[INPUT SOURCE: user]\n"
        "[INPUT]: Find out\n"
        "[OUTPUT TYPE: plan]\n"
        f"[STATUS: {status}] {agent} is done\n"
        f"{fault}"
        "[RESOURCES]: source_refs=, storage_refs=, derived_refs=\n"
        "[COMPLIANCE NOTES]: in scope\n"
        "[GOVERNANCE FILES]: context/governance/audit.md\n"
        f"[MESSAGE_ID: {session}-{number}]\n"
        f"[SESSION_ID: {session}]\n"
        "---\n"
    )


def sent_by(daemon: Daemon) -> list[str]:
    """Ids of the conversation that a daemon's own agent has sent."""
    listed = daemon.get("/v1/messages?direction=out&limit=500")["messages"]
    return [one["id"] for one in listed if one["kind"] in ("say", "trace")]


def refused(daemon: Daemon, message: Any) -> set[tuple[str, str]]:
    """Path and rule of the errors for which a message is refused."""
    with pytest.raises(HttpError) as caught:
        submit(daemon, "sentient", message)
    assert (caught.value.status, caught.value.answer["code"]) == (422, "message_refused")
    return {(path, rule) for path, rule, severity in found(caught.value.answer) if severity == "error"}


@contextlib.contextmanager
def dying(daemon: Daemon, point: str) -> Iterator[None]:
    """Starts a daemon again so that it dies at `point` in what follows, and raises it when it has."""
    while True:
        assert daemon.stop() == 0
        daemon.env[VARIABLE] = point
        daemon.start(wait=False)
        process = daemon.process
        assert process is not None
        del daemon.env[VARIABLE]
        with contextlib.suppress(AssertionError):
            daemon.wait_ready()
        if process.poll() is None:
            break
        daemon.start()  # what it had left to do came to the point first: progress goes up a moment after it arrives
    yield
    assert process.wait(WITHIN) == -signal.SIGKILL, f"{daemon.name} never came to {point}"
    daemon.start()
