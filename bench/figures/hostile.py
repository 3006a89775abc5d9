"""Figure `hostile`: how long a contact with a key waits for its receipt under each attack of docs/threat-model.md, against idle."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

from aghbus.protocol.agh.identifiers import subject_for
from bench.harness.envelopes import CHANNEL, WORKSPACE
from bench.harness.figure import Figure, Result, Row, Run
from bench.harness.processes import Child, broker, home, run_all
from bench.harness.wire import RawApi, RawNats
from tests.support.daemons import Daemon, wait_for

_SAYS: Final = 7
_PATIENCE: Final = 20.0  # seconds; a message that is not receipted by then counts as that
_POLL: Final = 0.002
_TARGET: Final = 6.0
_FLAGS: Final = ("--store-retention-size", "64MiB")


class _Attack(NamedTuple):
    name: str
    what: str
    rate: int = 0  # messages a second; 0: all at once
    stream: bool = False


_ATTACKS: Final = (
    _Attack("names", "invented names, 40,000/s", 40_000),
    _Attack("keys", "fresh keys with valid signatures, 20,000/s", 20_000),
    _Attack("replays", "replays of a contact's broadcast, 7,000/s", 7_000),
    _Attack("forgeries", "forgeries of the contact's handle, 12,000/s", 12_000),
    _Attack("forgeries", "forgeries of the contact's handle, 40,000/s", 40_000),
    _Attack("inbox", "10,400 says of four fresh keys"),
    _Attack("openings", "320 openings of 300 KB that nobody finishes"),
    _Attack("traces", "220 traces of 450 KB of unknown works"),
    _Attack("early", "JetStream: 1,100 says whose predecessor never comes", stream=True),
    _Attack("broadcasts", "JetStream: 3,700 says to everybody", stream=True),
)


def measure(run: Run) -> Result:
    """For each attack two daemons with keys that have talked before: says of the one, idle and under the attack on the other."""
    rows: list[Row] = []
    notes: list[str] = []
    smoke = not run.scale.warm_up  # beside other tests
    for attack in _ATTACKS[:1] if smoke else _ATTACKS:
        if rows and run.progress.late:
            break
        run.progress.step(attack.what)
        with _pair(stream=attack.stream) as (url, ops, bob):
            api = RawApi(ops.socket_path)
            to = bob.get("/v1/status")["peer_id"]
            idle = [_receipted(api, to) for _ in range(_SAYS)]
            job = {
                "attack": attack.name,
                "url": url,
                "to": to,
                "rate": 500 if smoke else attack.rate,
                "captured": _captured(url, api),
            }
            with Child("bench.harness.attacker", json.dumps(job)) as attacker:
                attacker.read()
                under = [_receipted(api, to)]
                while len(under) < _SAYS and under[-1] < 1000 * _PATIENCE:
                    under.append(_receipted(api, to))
            problems = bob.get("/v1/status")["problems"]
        rows.append(
            Row(
                what=attack.what,
                unit="ms",
                values=under,
                floor="idle",
                floors=sorted(idle)[len(idle) // 2 :][:1] * len(under),
                target=_TARGET,
                better="lower",
            )
        )
        notes.append(f"{attack.what}: {'; '.join(problems) or 'no problem'}")
    return Result(rows=rows, notes=notes)


@contextmanager
def _pair(*, stream: bool) -> Iterator[tuple[str, Daemon, Daemon]]:
    """The broker's URL, and the daemons `ops` and `bob` with keys, each of which has addressed the other."""
    flags = (*_FLAGS, "--durability", "jetstream") if stream else _FLAGS
    with broker(jetstream=stream) as server, home() as folder, ExitStack() as stack:
        pair = [Daemon(folder, name, "--nats", server.url, *flags) for name in ("ops", "bob")]
        for one in pair:
            assert folder.ctl("--name", one.name, "key", "generate").returncode == 0
        run_all(stack, pair)
        ops, bob = pair
        ids = [str(one.get("/v1/status")["peer_id"]) for one in pair]
        wait_for(lambda: ops.knows(*ids) and bob.knows(*ids), 30, "the daemons to meet")
        for one, to in ((ops, ids[1]), (bob, ids[0])):
            _receipted(RawApi(one.socket_path), to)
        yield server.url, ops, bob


def _receipted(api: RawApi, to: str) -> float:
    """Milliseconds from the request until the receiver has acknowledged the message; `_PATIENCE` at most."""
    started = time.monotonic()
    sent = api.call(
        "POST", "/v1/messages", {"kind": "say", "to": to, "thread_id": "thread_ours", "body": {"text": "hello"}}
    )
    while time.monotonic() - started < _PATIENCE:
        if api.call("GET", f"/v1/messages/{sent['id']}")["delivery"] == "receipted":
            break
        time.sleep(_POLL)
    return 1000 * (time.monotonic() - started)


def _captured(url: str, api: RawApi) -> str:
    """A broadcast of `ops` as everybody on the channel sees it."""
    with RawNats(url) as nats:
        nats.subscribe(subject_for(WORKSPACE, CHANNEL, None))
        api.call("POST", "/v1/messages", {"kind": "say", "thread_id": "thread_all", "body": {"text": "to all"}})
        while True:
            for raw in nats.receive():
                if b'"say"' in raw:
                    return raw.decode()


FIGURE = Figure("hostile", "A contact under attack", measure, weight=2.0)
