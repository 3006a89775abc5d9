"""Messages in a work while the agent works on its task: the questions of the agent, and the says of the initiator.

Everything that the initiator says is a message to the task, in order, sent once. A say while a question is open is its
answer; what could not be sent before goes along with it. The journal has two records for each message:

    saying  which says (`since`, `seq`: sequences of the daemon), the `id` of the message,
            and the `key` of the question that it answers, or an empty one                  before it goes out
    said    `how` it went: one of SENT, UNSENT, UNKNOWN, REFUSED and LATE                    before the next one
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final

import msgspec

from aghbus.client.core.refusals import NotFound
from aghbus.client.work.job import JobCore
from aghbus.client.work.journal import JournalEntry
from aghbus.gateways.a2a.join.agent import AgentError, Away, Lost, NoSuchTask, Refused
from aghbus.gateways.a2a.join.reports import Question, Settings, WorkReports
from aghbus.gateways.base.actions import act
from aghbus.protocol.api.artifact_uri import parse_uri
from aghbus.protocol.api.messages import Message
from aghbus.protocol.api.works import WorkActionRequest
from aghbus.protocol.base.backoff import Backoff
from aghbus.protocol.base.text import shorten
from aghbus.protocol.formats.a2a import outward
from aghbus.protocol.formats.a2a.parts import Json

FIRST_RETRY, LAST_RETRY = 0.5, 30.0
CONFIRM_WITHIN: Final = 5.0
"""Seconds for the answer to a message to a task, before the next one is sent: some agents answer at their next step only."""
LOOK: Final = 60.0
"""Seconds after which it is looked for what was said, although nothing told of it."""
MAX_INPUT_BYTES: Final = 8 << 20
"""Most bytes of artifacts that a message takes along."""
QUOTED: Final = 200
"""Characters of what was said, in a notice about it."""
SAYS: Final = ("saying", "said")
"""The phases of the journal that are not those of the task."""

SENT: Final = "sent"
UNSENT: Final = "unsent"
"""The agent has certainly not got it."""
UNKNOWN: Final = "unknown"
"""Whether the agent has got it; the initiator was told."""
REFUSED: Final = "refused"
"""By the agent, or it could not be a message; the initiator was told."""
LATE: Final = "late"
"""The task had ended before; the initiator is told at the end."""

NOT_KNOWN: Final = (
    "It is not known whether the agent has got the answer, and it was not sent again, since the agent might take it twice. "
    "Answer once more, and that is sent."
)


class CannotSend(Exception):
    """What was said cannot be a message; the text says why."""


class Conversation(WorkReports):
    """The part of a work that asks and passes on."""

    def __init__(self, core: JobCore, entry: JournalEntry, settings: Settings) -> None:
        super().__init__(core, entry, settings)
        self._agent = settings.agent
        self._looked = asyncio.Event()
        """Set once the state of the task is known."""
        self._look_again = asyncio.Event()
        """Set when the task may have another state."""
        self._heard = asyncio.Event()
        """Set when the initiator may have said something, or it may be sent."""
        core.state.on_event = lambda _: self._heard.set()
        self._deliveries: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    @property
    def _task_id(self) -> str:
        return str((self.entry.last("task") or {})["task_id"])

    # questions

    async def _ask(self, task: Json) -> None:
        """Hand a question on, unless that was done."""
        key, last = outward.status_key(task), self._last_message()
        if self._question is not None and self._question.key == key:
            return
        self._question = Question(key, math.inf)  # nothing that was said before is its answer
        text, result, ext = outward.question_of(task)
        if last.get("key") == key and last["why"]:
            text = f"{last['why']}\n\n{text}"
        action = WorkActionRequest(message=text, result=result, ext=ext)
        action.id = self._id("ask", key, str(self._sent_through()))
        seq = await act(self.core, "need-input", action)
        if (asked := self.entry.last("asked")) is None or asked["id"] != action.id:
            self.entry.write("asked", id=action.id)
            self.emit("asked", message=text)
        self._question = Question(key, seq)
        self._heard.set()

    def _answered(self, task: Json) -> str | None:
        """How the answer to the question of a task went, empty while it is going out; None without one."""
        last = self._last_message()
        return str(last["how"]) if last.get("key") == outward.status_key(task) else None

    def _no_question(self) -> None:
        """The task goes on: with an answer, or without one."""
        if self._question is not None:
            self._question = None
            self._heard.set()

    # what the initiator says

    async def _pass_on(self) -> None:
        """Send what the initiator says, one message after the other. Does not end by itself."""
        await self._looked.wait()
        if (left := self._last_message()) and not left["how"]:  # of a process that was killed
            await self._after_loss(left)
        backoff = Backoff(FIRST_RETRY, LAST_RETRY)
        while True:
            self._heard.clear()
            while says := await self._due():
                await self._send_says(says)
                await self.core.read()
                if self._last_message()["how"] == UNSENT:
                    await asyncio.sleep(backoff.next())
                else:
                    backoff.reset()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._heard.wait()
            if self._failure is not None:
                raise self._failure

    def _last_message(self) -> Json:
        """The latest message to the task."""
        return self._messages()[-1] if self.entry.last("saying") else {}

    def _messages(self) -> list[Json]:
        """The messages to the task: each record `saying`, with `how` it went and `why`, both empty as long as that is open."""
        found = list[Json]()
        for record in self.entry.records:
            if record["phase"] == "saying":
                found.append({**record, "how": "", "why": ""})
            elif record["phase"] == "said":
                found[-1] |= record
        return found

    def _sent_through(self) -> int:
        """The sequence of the latest say that is not to be sent (again)."""
        if not (last := self._last_message()):
            return self.core.seq
        return int(last["since"] if last["how"] == UNSENT else last["seq"])

    async def _says(self, since: int) -> list[Message]:
        """What the initiator said in the work after a sequence, and had effect."""
        found = await self.core.core.heard(self.core.work_id, self.core.channel, "say", since)
        return [one for one in found if one.outcome in ("advanced", "unchanged") and not one.damaged]

    async def _due(self) -> list[Message]:
        """What is to be sent now, in one message. While a question is open that includes its answer; a message that is sent again
        is the same."""
        says, last, question = await self._says(self._sent_through()), self._last_message(), self._question
        if last and last["how"] == UNSENT and (question is None or question.key == last["key"]):
            return [one for one in says if one.seq <= last["seq"]]
        if question is not None and not any(one.seq > question.seq for one in says):
            return []
        return says

    async def _send_says(self, says: Sequence[Message]) -> None:
        known, last = self.entry.last("task") or {}, self._last_message()
        envelopes = [msgspec.json.decode(one.envelope) for one in says]
        key = self._question.key if self._question is not None else last["key"] if last.get("how") == UNSENT else ""
        record: Json = {"since": self._sent_through(), "seq": says[-1].seq, "key": key}
        record["id"] = outward.derived(self._opening_id, "say", says[-1].id)
        quoted = _quoted(says)
        try:
            references = [one for envelope in envelopes for one in (envelope.get("body") or {}).get("artifacts") or ()]
            files = await self._files(references)
        except CannotSend as error:
            self.entry.write("saying", **record)
            await self._give_up(record, REFUSED, f"What was said was not sent to the agent: {error}", quoted)
            return
        message = outward.further_message(record["id"], envelopes, files, known)
        self.entry.write("saying", **record)
        delivery = asyncio.create_task(self._deliver(message, record, quoted))
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._on_delivered)
        if (await asyncio.wait({delivery}, timeout=CONFIRM_WITHIN))[0]:
            delivery.result()
        else:
            self._note_said(record, SENT)  # the agent has it, and has not refused it

    def _on_delivered(self, delivery: asyncio.Task[None]) -> None:
        self._deliveries.discard(delivery)
        if not delivery.cancelled() and (error := delivery.exception()) is not None:
            self._failure = error
            self._heard.set()

    def _is_latest(self, record: Json) -> bool:
        return bool(self._last_message()["id"] == record["id"])

    def _note_said(self, record: Json, how: str, why: str = "") -> None:
        """What became of the latest message. That it was sent may have been assumed."""
        if self._is_latest(record) and self._last_message()["how"] in {"", SENT} - {how}:
            self.entry.write("said", how=how, why=why)
            if how == SENT:
                self.emit("answered" if record["key"] else "said")
            self._heard.set()
        self._look_again.set()

    async def _give_up(self, record: Json, how: str, why: str, quoted: str) -> None:
        """Tell the initiator that a message is not sent, or not again; a question is asked again."""
        if record["key"] and self._is_latest(record):
            self._note_said(record, how, why)
            self._question = None
        else:
            await self._notify(f"{why}: {quoted}")
            self._note_said(record, how)

    async def _deliver(self, message: Json, record: Json, quoted: str) -> None:
        """Send one message to the task."""
        try:
            reply = await self._agent.tell(message, self.core.state.trace)
            if reply.get("task", {}).get("id", message["taskId"]) != message["taskId"]:
                raise Refused("it began another task")
        except Away as error:
            await self._tell_away(error)
            if self._is_latest(record):
                self._note_said(record, UNSENT)
            else:
                await self._give_up(record, REFUSED, f"What was said could not be sent in its order: {error}", quoted)
        except Lost as error:
            await self._tell_away(error)
            await self._after_loss(record)
        except Refused as error:
            await self._on_refused(error, record, quoted)
        else:
            self._back()
            self._note_said(record, SENT)
            if "message" in reply and (text := outward.outcome_of_message(reply["message"]).message):
                await self._notify(text)

    async def _on_refused(self, error: Refused, record: Json, quoted: str) -> None:
        """Tell the initiator, unless the task has ended meanwhile: then its end does."""
        task: Json = {}
        with suppress(AgentError):
            task = await self._agent.get(self._task_id)
        if outward.state_of(task) in outward.ENDED or isinstance(error, NoSuchTask):
            self._note_said(record, LATE)
        else:
            await self._give_up(record, REFUSED, f"The agent does not take what was said: {error}", quoted)

    async def _after_loss(self, record: Json) -> None:
        """Find out whether the agent has got a message. Where that cannot be known, the initiator decides."""
        backoff = Backoff(FIRST_RETRY, LAST_RETRY)
        while True:
            try:
                task = await self._agent.get(self._task_id)
                break
            except (Away, Lost) as error:
                await self._tell_away(error)
                await asyncio.sleep(backoff.next())
            except Refused:
                task = {}
                break
        self._back()
        moved = bool(record["key"] and task) and outward.status_key(task) != record["key"]
        if moved or outward.has_message(task, record["id"]):
            self._note_said(record, SENT)
        elif self._settings.resend and self._is_latest(record):
            self._note_said(record, UNSENT)
        elif record["key"] and self._is_latest(record):
            await self._give_up(record, UNKNOWN, NOT_KNOWN, "")
        else:
            says = [one for one in await self._says(record["since"]) if one.seq <= record["seq"]]
            why = "It is not known whether the agent has got what was said, and it was not sent again"
            await self._give_up(record, UNKNOWN, why, _quoted(says))

    async def _unheard(self, task: Json) -> str:
        """What the initiator said that the agent has not got, or not taken into the history of its ended task; empty if nothing."""
        through, missed, says = self._sent_through(), list[Message](), await self._says(self.core.seq)
        for message in self._messages():
            absent = outward.has_message(task, message["id"]) is False
            if message["how"] == LATE or (message["how"] in ("", SENT) and not message["key"] and absent):
                missed += [one for one in says if message["since"] < one.seq <= message["seq"]]
        missed += [one for one in says if one.seq > through]
        return f"the agent ended its task without what was said meanwhile: {_quoted(missed)}" if missed else ""

    async def _files(self, references: Iterable[Any]) -> dict[str, bytes]:
        """The stored files among references, by their URI. Raises CannotSend for those that are not there, or too large."""
        files, size = dict[str, bytes](), 0
        for reference in references:
            uri = reference.get("uri") if isinstance(reference, dict) else None
            if not isinstance(uri, str) or (place := parse_uri(uri)) is None or uri in files:
                continue
            content = bytearray()
            try:
                async with aclosing(self._settings.client.get_artifact(*place)) as pieces:
                    async for piece in pieces:
                        content += piece
                        if size + len(content) > MAX_INPUT_BYTES:
                            raise CannotSend(f"the artifacts are larger than {MAX_INPUT_BYTES} bytes together")
            except NotFound:
                raise CannotSend(f"the artifact {uri} is not in the object store") from None
            size += len(content)
            files[uri] = bytes(content)
        return files


def _quoted(says: Sequence[Message]) -> str:
    texts = [str((msgspec.json.decode(one.envelope).get("body") or {}).get("text") or "") for one in says]
    return "; ".join(f"“{shorten(text, QUOTED)}”" for text in texts)
