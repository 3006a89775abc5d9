"""Envelopes of a peer that is only played: says of 614 bytes, and a mix of kinds around works."""

import itertools
import json
import secrets
import time
from collections.abc import Iterator
from typing import Any, Final

from aghbus.protocol.agh.identifiers import direct_id, subject_for
from aghbus.protocol.agh.trust.proof import EnvelopeSigner

WORKSPACE: Final = "ws_local"
CHANNEL: Final = "default"
SIZE: Final = 614  # bytes, as in the prototypes that the targets come from
LIFE: Final = 3_600  # seconds
MIX: Final = 10  # messages of the mix around one work


class EnvelopeMaker:
    """Envelopes from `sender` to `to`, with ids in the order of time unless they are `random_ids`; with a `signer`, signed by it
    under its handle. Says are of fifty threads, or with `threads` each is of a thread of its own."""

    def __init__(
        self,
        sender: str,
        to: str | None,
        signer: EnvelopeSigner | None = None,
        *,
        random_ids: bool = False,
        threads: bool = False,
    ) -> None:
        self.sender = sender if signer is None else signer.handle
        self._signer = signer
        self.to = to
        self.subject = subject_for(WORKSPACE, CHANNEL, to)
        self._random_ids = random_ids
        self._threads = threads
        self._numbers = itertools.count()
        self._origin = time.time_ns()

    def make(self, kind: str, body: dict[str, Any], size: int = 0, **fields: Any) -> bytes:
        """One envelope, padded in its body's text to `size` bytes before it is signed."""
        now = int(time.time())
        envelope = {
            "protocol": "agh-network/v0",
            "id": self._id(),
            "workspace_id": WORKSPACE,
            "kind": kind,
            "channel": CHANNEL,
            "from": self.sender,
            "to": self.to,
            "ts": now,
            "expires_at": now + LIFE,
            "body": body,
            "proof": None,
            **fields,
        }
        raw = json.dumps(envelope, separators=(",", ":")).encode()
        if size > len(raw):
            envelope["body"] = {**body, "text": body["text"] + "x" * (size - len(raw))}
            raw = json.dumps(envelope, separators=(",", ":")).encode()
        if self._signer is not None:
            raw = json.dumps(self._signer(envelope), separators=(",", ":")).encode()
        return raw

    def _id(self) -> str:
        if self._random_ids:
            return f"msg_{secrets.token_hex(14)}"
        return f"msg_{self._origin:016x}{next(self._numbers):012x}"

    def say(self, thread_id: str = "") -> bytes:
        """A say of 614 bytes in `thread_id`, or in the next thread."""
        if not thread_id:
            number = next(self._numbers)
            thread_id = f"thread_{self._origin}_{number}" if self._threads else f"thread_bench_{number % 50:03d}"
        return self.make("say", {"text": "", "intent": "notice"}, SIZE, surface="thread", thread_id=thread_id)

    def opening(self, work_id: str, thread_id: str) -> bytes:
        """A say that opens a work."""
        return self.make("say", {"text": "do this"}, SIZE, surface="thread", thread_id=thread_id, work_id=work_id)

    def greet(self) -> bytes:
        """A greet with a Peer Card, to everybody."""
        lists = ("profiles_supported", "capabilities", "artifacts_supported", "trust_modes_supported")
        return self.make("greet", {"peer_card": {"peer_id": self.sender, **{name: [] for name in lists}}})

    def around(self, work: dict[str, Any]) -> Iterator[bytes]:
        """MIX messages around a work that the receiver has opened for us: it is accepted, traced and completed between six other
        messages, one in a direct room and one that opens a work for the receiver."""
        place = {"surface": "thread", "thread_id": work["thread_id"], "work_id": work["work_id"]}
        yield self.make("receipt", {"for_id": work["id"], "status": "accepted"}, **place)
        yield self.say()
        yield self.make("trace", {"state": "working", "message": "a third of it"}, **place)
        yield self.say()
        yield self.say()
        assert self.to is not None
        room = {"surface": "direct", "direct_id": direct_id(WORKSPACE, CHANNEL, self.sender, self.to)}
        yield self.make("say", {"text": "between us"}, SIZE, **room)
        yield self.make("trace", {"state": "working", "message": "two thirds"}, **place)
        yield self.say()
        number = next(self._numbers)
        yield self.opening(f"work_{self._origin}_{number}", f"thread_open_{number}")
        yield self.make("trace", {"state": "completed", "result": {"passed": True, "tests": 42}}, **place)
