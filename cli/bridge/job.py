"""One work of `aghctl bridge FORMAT -- COMMAND`: the command gets the foreign message, and its output is submitted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from aghbus.cli.bridge.conversation import Said, transcript, with_conversation
from aghbus.cli.bridge.messages import line_of, message_of, messages_in, words
from aghbus.cli.worker.conversation import Question, Turn
from aghbus.cli.worker.job import CommandJob, plain
from aghbus.cli.worker.options import CommandOptions
from aghbus.cli.worker.process import Process, ProcessExit
from aghbus.cli.worker.reporter import Reporter
from aghbus.cli.worker.result import JobOutcome, failed, outcome_of
from aghbus.client.core.refusals import Conflict, NotFound
from aghbus.client.errors import RefusedByDaemon
from aghbus.client.work.clients import AsyncClient
from aghbus.client.work.job import ENDED, JobCore
from aghbus.client.work.journal import JournalEntry
from aghbus.protocol.agh.lifecycle import TERMINAL_STATES
from aghbus.protocol.api.bridge import BridgeMessage
from aghbus.protocol.api.messages import Event, SendResponse
from aghbus.protocol.base.formats import Format
from aghbus.protocol.formats.attachments import MAX_MESSAGE_BYTES
from aghbus.protocol.formats.model import Finding

SUBMIT = "submit"
"""The verb of a job whose command printed a message: the adapter decides what it means for the work."""
MAX_FINDINGS = 20
"""Findings in the trace about a refused message."""
SHOWN_CHARACTERS = 16_384
"""Characters of a refused message in the trace about it."""
_ANSWERED = {*TERMINAL_STATES, "needs_input"}


class BridgeJob(CommandJob):
    """A job whose input and output are messages of `format`."""

    keep = MAX_MESSAGE_BYTES

    def __init__(
        self,
        core: JobCore,
        entry: JournalEntry,
        options: CommandOptions,
        client: AsyncClient,
        reporter: Reporter,
        *,
        format: Format,
    ) -> None:
        super().__init__(core, entry, options, client, reporter)
        self._format = format

    async def _input(self, conversation: Sequence[Turn]) -> bytes:
        """The message as delivered, with the conversation: text as it is, any other JSON value on one line."""
        message = (await self._delivered(self.core.seq)).message
        if conversation:
            said = [one for turn in conversation for one in await self._said(turn)]
            text_only = isinstance(message, str)
            message = transcript(message, said) if text_only else with_conversation(self._format, message, said)
        return line_of(message)

    async def _delivered(self, seq: int) -> BridgeMessage:
        """An envelope in the format. Raises ValueError when it has no equivalent there."""
        response = await message_of(self._client, self._format, seq)
        self._emit_findings(response.findings)
        return response

    def _emit_findings(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            self.emit("problem", message=words(plain(finding)))

    async def _said(self, turn: Turn) -> list[Said]:
        if turn.message is not None:
            delivered = await self._delivered(turn.seq)
            return [Said(delivered.sender, delivered.message, native=delivered.native)]
        assert turn.finished is not None
        output = (turn.finished["result"] or {}).get("text", "")
        return [Said(None, text.strip()) for text in messages_in(self._format, output) or [turn.text or ""]]

    def _outcome(self, process: Process, ended: ProcessExit) -> JobOutcome:
        if ended.code != 0 or ended.stopped is not None:
            return outcome_of(process, ended, self._options.time_limit)
        printed = process.stdout.complete()
        if printed is None:
            return failed(f"the command printed more than {self.keep} bytes")
        try:
            text = printed.decode("utf-8", "replace" if self._format == "sacp" else "strict")
        except UnicodeDecodeError as error:
            return failed(f"the command's output is not UTF-8 at byte {error.start}")
        return JobOutcome(SUBMIT, None, {"text": text}, [])

    def _progress(self, process: Process) -> str:
        """The last line of standard error; standard output is the message itself."""
        return process.stderr.last_line()

    async def _send_result(self, finished: dict[str, Any]) -> Question | None:
        if finished["verb"] != SUBMIT:
            return await super()._send_result(finished)
        text = finished["result"]["text"]
        if not text.strip() and (question := await self._question()) is not None:
            return question
        key = f"{self.entry.token}_{len(self.entry.questions())}"
        sent: list[SendResponse] = []
        for part in messages_in(self._format, text) or [text]:
            try:
                response = await self._client.submit_foreign(
                    self._format, text=part, work_id=self.core.work_id, channel=self.core.channel, key=key
                )
            except RefusedByDaemon as error:
                await self._refused(error, part)
                return None
            self._emit_findings(response.findings)
            sent += response.sent
        return await self._after_submission(sent)

    async def _after_submission(self, sent: list[SendResponse]) -> Question | None:
        """The question, unless the output ended the work or passed it on to a next agent.

        An output that did neither is one too: the work would stay open for ever.
        """
        own = [one for one in sent if one.work_id == self.core.work_id]
        state = own[-1].work_state if own else None
        if state in TERMINAL_STATES or (own and len(own) < len(sent)):
            self.verb = "fail" if state in ("failed", "canceled") else "complete"
            self.emit("reported", verb=self.verb)
            return None
        seq = max((one.seq for one in sent), default=self.core.seq)
        found = await self._work() if own else None
        texts = (step.message for step in found.history if step.seq == seq) if found is not None else iter(())
        return Question(seq, next(texts, None), [] if own else await self._asked(sent))

    # queries to other peers

    async def _asked(self, sent: Sequence[SendResponse]) -> list[tuple[str, str]]:
        """The works in which other peers were asked: those of `sent`, and those asked before that were not answered."""
        works = dict.fromkeys((one.channel, one.work_id) for one in sent if one.work_id is not None)
        for _, waiting in self.entry.questions():
            for channel, work_id in waiting.get("asked", ()):
                if not await self._answers([(channel, work_id)], waiting["question"]):
                    works[channel, work_id] = None
        return list(works)

    async def _answers(self, works: Iterable[tuple[str, str]], since: int) -> list[int]:
        """The sequence of the newest answer or question in each of these works after sequence `since`, where there is one."""
        found = []
        for channel, work_id in works:
            try:
                steps = (await self._client.work(work_id, channel=channel)).history
            except NotFound:  # removed by retention
                continue
            found += [
                step.seq for step in steps if step.seq > since and step.before != step.after and step.after in _ANSWERED
            ][-1:]
        return found

    async def _is_answered(self, waiting: dict[str, Any]) -> bool:
        """Also when every other peer has answered that the command asked."""
        asked = waiting.get("asked", ())
        own = await super()._is_answered(waiting)
        if not own and (not asked or len(await self._answers(asked, waiting["question"])) < len(asked)):
            return False
        for channel, work_id in asked:
            await self.core.read(channel, work_id)
        return True

    async def _heard(self) -> list[dict[str, Any]]:
        """Also the answers of other peers."""
        seqs: dict[int, None] = {}
        for _, waiting in self.entry.questions():
            seqs |= dict.fromkeys(await self._answers(waiting.get("asked", ()), waiting["question"]))
        pages = [await self._client.messages(since=seq - 1, limit=1) for seq in seqs]
        return [*await super()._heard(), *(plain(message) for page in pages for message in page.messages)]

    async def _give_up(self) -> None:
        """Cancel what other peers were asked: the work has ended, and nobody waits for it."""
        for channel, work_id in self.entry.records[-1].get("asked", ()):
            with contextlib.suppress(RefusedByDaemon):
                await self._client.act_on_work(work_id, "cancel", channel=channel)

    def note_other(self, event: Event) -> None:
        """Look for answers when something happened in a work in which another peer was asked."""
        if event.work is not None and event.message is not None:
            asked = self.entry.records[-1].get("asked", ()) if self.is_waiting else ()
            if any(work_id == event.work.work_id for _, work_id in asked):
                self._changed.set()

    async def _refused(self, error: RefusedByDaemon, text: str) -> None:
        """Fail the work with the findings when the output breaks rules of the format; drop the job when the work has ended."""
        findings = [one for one in error.answer.get("findings") or [] if one["severity"] == "error"]
        self.verb = "fail"
        if isinstance(error, (*ENDED, Conflict)):
            self.emit("dropped", verb=self.verb)
            return
        why = words(findings[0]) if findings else error.message
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        end = failed(
            f"the output was refused: {why}{more}", findings=findings[:MAX_FINDINGS], output=text[:SHOWN_CHARACTERS]
        )
        self.emit("problem", message=end.message)
        await self._send_end(end._asdict())
