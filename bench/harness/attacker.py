"""A peer in its own process that attacks another one: `python -m bench.harness.attacker JOB` (JSON); a line when it runs.

Each attack is a list of prepared messages. With a `rate` they are sent so often a second, again and again, until standard input
ends; without one they are sent once, as fast as the broker takes them.
"""

import itertools
import json
import os
import secrets
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from aghbus.protocol.agh.identifiers import subject_for
from aghbus.protocol.agh.trust.keys import SigningKey
from aghbus.protocol.agh.trust.proof import EnvelopeSigner
from bench.harness.envelopes import CHANNEL, WORKSPACE, EnvelopeMaker
from bench.harness.wire import RawNats, frame

_PREPARED: Final = 2_000  # messages of an attack with a rate
_TICK: Final = 0.01  # seconds between two writes
_DAYS: Final = 6 * 86_400

Frames = Iterator[bytes]


def names(to: str, _captured: bytes) -> Frames:
    """Says of invented plain names."""
    return (_of(EnvelopeMaker(f"x{secrets.token_hex(6)}", to), "hello") for _ in range(_PREPARED))


def keys(to: str, _captured: bytes) -> Frames:
    """Says with valid signatures of fifty fresh keys."""
    makers = [_maker_with_key(to) for _ in range(50)]
    return (_of(makers[number % 50], "hello") for number in range(_PREPARED))


def replays(_to: str, captured: bytes) -> Frames:
    """One captured broadcast of a contact."""
    return itertools.repeat(frame(subject_for(WORKSPACE, CHANNEL, None), captured), _PREPARED)


def forgeries(to: str, captured: bytes) -> Frames:
    """Says in a contact's name, with the proof of another envelope of it."""
    shown = json.loads(captured)
    for _ in range(_PREPARED):
        yield _of(EnvelopeMaker(shown["from"], to), "hello", proof=shown["proof"])


def inbox(to: str, _captured: bytes) -> Frames:
    """Four fresh keys that fill what the inbox has for them."""
    makers = [_maker_with_key(to) for _ in range(4)]
    return (_of(makers[number % 4], "hello") for number in range(10_400))


def openings(to: str, _captured: bytes) -> Frames:
    """320 works of 300 KB under as many names, which nobody finishes."""
    for number in range(320):
        yield _of(EnvelopeMaker(f"opener{number}", to), "x" * 300_000, work_id=f"work_{secrets.token_hex(8)}")


def traces(to: str, _captured: bytes) -> Frames:
    """220 traces of 450 KB of unknown works, under as many names."""
    for number in range(220):
        maker = EnvelopeMaker(f"tracer{number}", to)
        body = {"state": "working", "message": "x" * 450_000}
        place = {"surface": "thread", "thread_id": "thread_t", "work_id": f"work_{secrets.token_hex(8)}"}
        yield frame(maker.subject, maker.make("trace", body, **place))


def early(to: str, _captured: bytes) -> Frames:
    """1,100 says whose predecessor never comes, of one name that has greeted as a daemon of this project."""
    lists = ("profiles_supported", "capabilities", "artifacts_supported", "trust_modes_supported")
    everybody, card = EnvelopeMaker("early", None), {"peer_id": "early", **{name: [] for name in lists}}
    yield frame(everybody.subject, everybody.make("greet", {"peer_card": card}, ext={"aghbus.instance": "early"}))
    maker, until = EnvelopeMaker("early", to), int(time.time()) + _DAYS
    for number in range(1_100):
        after = {"aghbus.after": {"id": f"msg_{secrets.token_hex(14)}", "expires_at": until}}
        yield _of(maker, f"{number}", ext=after, expires_at=until)


def broadcasts(_to: str, _captured: bytes) -> Frames:
    """3,700 says to everybody, of one name."""
    maker = EnvelopeMaker("loud", None)
    return (_of(maker, f"{number}") for number in range(3_700))


ATTACKS: Final[dict[str, Callable[[str, bytes], Frames]]] = {
    attack.__name__: attack for attack in (names, keys, replays, forgeries, inbox, openings, traces, early, broadcasts)
}


def _of(maker: EnvelopeMaker, text: str, **fields: Any) -> bytes:
    fields = {"surface": "thread", "thread_id": "thread_attack", **fields}
    return frame(maker.subject, maker.make("say", {"text": text}, **fields))


def _maker_with_key(to: str) -> EnvelopeMaker:
    return EnvelopeMaker("", to, EnvelopeSigner(SigningKey(os.urandom(32)), "fresh"))


def main() -> None:
    """Attack until standard input ends."""
    job = json.loads(sys.argv[1])
    frames = list(ATTACKS[job["attack"]](job["to"], job.get("captured", "").encode()))
    with RawNats(job["url"]) as nats:
        if not (rate := job.get("rate")):
            for each in frames:
                nats.socket.sendall(each)
            nats.flush()
            print("true", flush=True)
            sys.stdin.read()
            return
        print("true", flush=True)
        turn, started, sent = itertools.cycle(frames), time.monotonic(), 0
        while not select.select([sys.stdin], [], [], _TICK)[0]:
            due = int((time.monotonic() - started) * rate)
            nats.socket.sendall(b"".join(itertools.islice(turn, max(0, due - sent))))
            sent = max(sent, due)


if __name__ == "__main__":
    main()
