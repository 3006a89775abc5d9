"""Agents of foreign formats on real daemons: a broker and daemons, submission by the API, following a stream."""

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.support.daemons import ADMIT_ALL, Daemon, Home, wait_for
from tests.support.natsutil import NatsServer

WITHIN: Final = 20.0  # seconds; the machine is shared
NO_ERROR: Final = {
    "has_error": False,
    "error_code": None,
    "error_message": None,
    "retry_count": 0,
    "recoverable": False,
}
"""The error of a message of a sentient chain that reports none."""

Found = list[tuple[str, str, str]]
"""Path, rule and severity of each finding, sorted."""


@contextlib.contextmanager
def broker() -> Iterator[str]:
    """The URL of a nats-server that runs beside the daemons, so that killing one of them leaves it alone."""
    server = NatsServer()
    asyncio.run(server.start())
    try:
        yield server.url
    finally:
        asyncio.run(server.__aexit__(None, None, None))


@contextlib.contextmanager
def daemons(root: Path, url: str, peers: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Daemon]]:
    """A daemon for each peer id, with its flags, in a home of `root`; all know one another."""
    home = Home(root)
    with contextlib.ExitStack() as stack:
        made: dict[str, Daemon] = {}
        for number, (peer, flags) in enumerate(peers.items()):
            daemon = Daemon(home, f"d{number}", "--peer-id", peer, "--nats", url, *ADMIT_ALL, *flags)
            made[peer] = daemon.start(wait=False)
            stack.push(daemon.__exit__)
        for daemon in made.values():
            daemon.wait_ready()
        for peer, daemon in made.items():
            others = set(made) - {peer}
            wait_for(partial(daemon.knows, *others), WITHIN, f"the peers of {peer}")
        yield made


def agent_map(names: Mapping[str, str]) -> tuple[str, ...]:
    """The flags of an agent map: names of agents to peer ids."""
    return tuple(flag for name, peer in names.items() for flag in ("--bridge-agent", f"{name}={peer}"))


def submit(daemon: Daemon, name: str, message: Any, **more: Any) -> Any:
    """The API's answer to a message, submitted as the text that an agent writes; of SACP `message` is the text."""
    text = message if name == "sacp" else json.dumps(message, ensure_ascii=False)
    return daemon.post(f"/v1/bridge/{name}", text=text, **more)


def handed_out(daemon: Daemon, name: str, envelope_id: str) -> Any:
    """What a format's stream, read from its beginning, has for an envelope; waits for it."""
    with contextlib.closing(daemon.stream(f"/v1/bridge/{name}/stream?since=0", WITHIN)) as stream:
        for event in stream:
            if event.get("envelope_id") == envelope_id:
                return event
    raise AssertionError(f"the stream ended without {envelope_id}")


def the_say(answer: Any) -> Any:
    """The one say among the envelopes that an API answer lists."""
    (said,) = (sent for sent in answer["sent"] if sent["kind"] == "say")
    return said


def found(answer: Any) -> Found:
    """The findings of an answer, or of a delivered message."""
    return sorted((one["path"], one["rule"], one["severity"]) for one in answer["findings"])


def same_json(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same: `1`, `1.0` and `true` differ, the order of members does not count."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_json(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)


def envelope(daemon: Daemon, message_id: str) -> Any:
    """A stored envelope as on the wire; waits for it."""
    box: list[Any] = []

    def there() -> bool:
        listed = daemon.get("/v1/messages?limit=500")["messages"]
        box.extend(one["envelope"] for one in listed if one["id"] == message_id)
        return bool(box)

    wait_for(there, WITHIN, f"{message_id} at {daemon.name}")
    return box[0]


def work_ended(daemon: Daemon, work_id: str) -> Any:
    """A work as this daemon knows it; waits until it has ended."""
    wait_for(lambda: daemon.state_of(work_id) in {"completed", "failed", "canceled"}, WITHIN, f"the end of {work_id}")
    return daemon.get(f"/v1/works/{work_id}")["work"]
