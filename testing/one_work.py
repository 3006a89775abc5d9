"""In place of a daemon: a core that knows one work, with the rules of the protocol for what its target sends."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Final

import msgspec

from aghbus.client.core.core import Core
from aghbus.client.core.ids import new_id
from aghbus.client.core.operation import Call
from aghbus.client.core.refusals import CLASS_OF_CODE, InvalidRequest
from aghbus.client.core.threads import Threads
from aghbus.client.http import Endpoint
from aghbus.protocol.agh.effects import Advance
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.lifecycle import Transition, opened_by
from aghbus.protocol.agh.send import Draft, apply_own, build
from aghbus.protocol.api.base import RawObject
from aghbus.protocol.api.inbox import InboxItem, InboxNackRequest, InboxNextResponse
from aghbus.protocol.api.messages import Event, Message, SendResponse
from aghbus.protocol.api.work_actions import message_of
from aghbus.protocol.api.works import Work, WorkActionRequest, WorkLimits, WorkResponse, WorkVerb
from aghbus.protocol.base.errors import RequestError
from aghbus.protocol.base.secret_check import first_secret, secret_like

LEASE: Final = "lease_of_a_fake_job"
WORKSPACE: Final = "ws_local"
CHANNEL: Final = "default"
TARGET: Final = "worker"
"""The peer id of the daemon that is not there."""


class OneWork(Core):
    """The work that `sender` opened with a message of `kind` and `body`, leased for the `attempts`th time.

    `on_action` gets each action that the protocol allows, `on_return` the request that returns the work to the inbox. Questions get
    `answers` in turn. Raises InvalidRequest for an opening that no daemon would send.
    """

    def __init__(self, kind: str, body: dict[str, Any], sender: str, attempts: int, answers: Iterable[str]) -> None:
        super().__init__(Threads(Endpoint(path="no daemon")), 0.0)
        self.on_action: Callable[[WorkVerb, WorkActionRequest], object]
        self.on_return: Callable[[InboxNackRequest], object]
        self._answers = deque(answers)
        self._messages = 0
        self._thread_id, self._work_id = new_id("thread_"), new_id("work_")
        opening = self._built(kind, body, sender, TARGET)
        self._view = opened_by(opening)
        self.item = self._item(self._stored(opening, Transition("opened", "submitted")), attempts)

    def variant(self, *, runtime: Threads | None = None, patience: float | None = None) -> Core:
        """The same work: nothing here waits."""
        return self

    def cancel(self) -> None:
        """Let the initiator cancel the work. Raises ClientError when it has ended."""
        self._act(self._view.initiator, "cancel", WorkActionRequest())

    async def fetch(self, call: Call) -> bytes:
        """The answer of the daemon to a call about the work."""
        body = b"".join(call.body)
        match (call.method, *call.target.partition("?")[0].split("/")[2:]):
            case "GET", "works", _:
                answer: Any = WorkResponse(
                    work=self._work(),
                    history=[],
                    history_omitted=0,
                    next_before=None,
                    attempts=[],
                    limits=WorkLimits(accept_within=None, progress_within=None, hedge=False),
                    why=None,
                )
            case "POST", "works", _, verb:
                answer = self._acted(verb, body)
            case "POST", "inbox", "next":
                answer = InboxNextResponse(item=None)
            case "POST", "inbox", _, "nack":
                self.on_return(msgspec.json.decode(body, type=InboxNackRequest))
                answer = self.item
            case "POST", "inbox", _, _:
                answer = self.item
            case _:
                raise NotImplementedError(f"a fake job has no {call.method} {call.target}")
        return msgspec.json.encode(answer)

    async def watch(
        self, work_id: str, since: int | None, deadline: float = math.inf, *, only_standstill: bool = False
    ) -> AsyncGenerator[Event | None, None]:
        """The next answer of the initiator, if there is one. Raises TimeoutError, and AssertionError when the wait had no end."""
        if not self._answers:
            if deadline < math.inf:
                raise TimeoutError("nothing happened in time")
            raise AssertionError("a question has no answer: give the job one more in `answers`")
        said = self._act(self._view.initiator, "say", WorkActionRequest(message=self._answers.popleft()))
        yield Event(seq=said.seq, type="envelope", message=said)

    def _acted(self, verb: Any, body: bytes) -> SendResponse:
        try:
            ask = msgspec.json.decode(body, type=WorkActionRequest)
        except msgspec.ValidationError as error:
            raise InvalidRequest(str(error)) from None
        message = self._act(TARGET, verb, ask)
        self.on_action(verb, ask)
        fields = {name: getattr(message, name) for name in ("id", "seq", "kind", "workspace_id", "channel", "to")}
        return SendResponse(**fields, **self._names(), work_state=self._view.state, state="queued")

    def _act(self, actor: str, verb: WorkVerb, ask: WorkActionRequest) -> Message:
        """An action of a participant, by the rules of its daemon. Raises RefusedByDaemon."""
        try:
            kind, body = message_of(self._view, actor, verb, ask)
            envelope = self._built(kind, body, actor, self._view.other(actor) or "", self._view.opening_id)
            if not ask.allow_secrets and (path := first_secret(envelope.document())) is not None:
                raise secret_like(path)
            advances = [one for one in apply_own(envelope, self._view, None) if isinstance(one, Advance)]
        except RequestError as error:
            refused = CLASS_OF_CODE[error.error_code]
            raise refused(error.message, error.hint, error.error_code) from None
        self._view = advances[0].after
        return self._stored(envelope, Transition("advanced", self._view.state))

    def _built(self, kind: str, body: dict[str, Any], sender: str, to: str, opening_id: str | None = None) -> Envelope:
        now = int(time.time())
        return build(
            Draft(
                id=new_id("msg_"),
                workspace_id=WORKSPACE,
                channel=CHANNEL,
                kind=kind,
                sender=sender,
                ts=now,
                body=body,
                to=to,
                reply_to=opening_id if kind == "receipt" else None,
                causation_id=opening_id,
                surface="thread",
                container=self._thread_id,
                work_id=self._work_id,
            ),
            now,
        )

    # the types of the API

    def _names(self) -> dict[str, Any]:
        return {"thread_id": self._thread_id, "direct_id": None, "work_id": self._work_id}

    def _stored(self, envelope: Envelope, verdict: Transition) -> Message:
        self._messages += 1
        return Message(
            seq=self._messages,
            id=envelope.id,
            direction="out" if envelope.sender == TARGET else "in",
            kind=envelope.kind,
            workspace_id=WORKSPACE,
            channel=CHANNEL,
            sender=envelope.sender,
            to=envelope.to,
            **self._names(),
            trust="unverified",
            received_ms=envelope.ts * 1000,
            outcome=verdict.outcome,
            reason=None,
            delivery=None,
            delivery_detail=None,
            envelope=RawObject(envelope.raw),
        )

    def _item(self, opening: Message, attempts: int) -> InboxItem:
        return InboxItem(
            seq=opening.seq,
            state="leased",
            attempts=attempts,
            lease=LEASE,
            lease_until_ms=None,
            available_ms=opening.received_ms,
            last_error=None,
            work_state="submitted",
            message=opening,
            lane="contact",
        )

    def _work(self) -> Work:
        opening = self.item.message
        return Work(
            capability=None,
            first_id=None,
            workspace_id=WORKSPACE,
            channel=CHANNEL,
            surface="thread",
            **self._names(),
            initiator=self._view.initiator,
            target=TARGET,
            role="target",
            state=self._view.state,
            trust=opening.trust,
            text="",
            opening_id=opening.id,
            opened_ms=opening.received_ms,
            updated_ms=opening.received_ms,
            last_seq=self._messages,
            message=None,
            result=None,
            artifacts=None,
        )
