"""One job: from a leased message to the terminal trace. Each step is in the journal before the next one begins."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from aghbus.cli.app.text import span
from aghbus.cli.app.uploads import content_of, put
from aghbus.cli.worker import artifacts as worker_artifacts
from aghbus.cli.worker import input as worker_input
from aghbus.cli.worker import process_group as worker_group
from aghbus.cli.worker.conversation import Question, Turn, latest_answer, steps_of_run, turns
from aghbus.cli.worker.heartbeats import Heartbeats
from aghbus.cli.worker.options import CommandOptions
from aghbus.cli.worker.process import TAIL_BYTES, Process, ProcessExit, StopReason
from aghbus.cli.worker.reporter import Reporter
from aghbus.cli.worker.result import JobOutcome, failed, outcome_of
from aghbus.client.api import Api
from aghbus.client.core.aio import in_thread
from aghbus.client.core.refusals import Conflict, NotFound
from aghbus.client.errors import RefusedByDaemon
from aghbus.client.work.clients import AsyncClient
from aghbus.client.work.job import JobCanceled, JobCore
from aghbus.client.work.journal import JournalEntry
from aghbus.host.tracing import Span, ids_of
from aghbus.protocol.agh.envelope import OPENING_KINDS
from aghbus.protocol.agh.lifecycle import REFUSING_OUTCOMES, TERMINAL_STATES
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.queries import MAX_LIMIT
from aghbus.protocol.api.works import WorkActionRequest, WorkResponse, WorkVerb

CLOCK_CHECK = 5.0
"""Seconds between two looks at the clock, which may be set, while a job waits for an answer."""
BUSY = "the worker is busy"
"""The message of a rejection when no slot is free."""
RESTARTED = "the worker was restarted while the command ran; it was not run again"


class CommandJob:
    """One work of this worker. `run` carries it out; other tasks call `stop`.

    `counts`: the outcome is part of the worker's exit code. `on_waiting` is called when its command has asked a question.
    """

    keep = TAIL_BYTES
    """How many bytes of the command's output are kept."""

    def __init__(
        self, core: JobCore, entry: JournalEntry, options: CommandOptions, client: AsyncClient, reporter: Reporter
    ) -> None:
        self.core = core
        self.entry = entry
        self.message: dict[str, Any] = entry.records[0]["item"]["message"]
        self.verb: str | None = None
        self.counts = False
        self.on_waiting: Callable[[], object] = lambda: None
        self._options = options
        self._client = client
        self._reporter = reporter
        self._carrier = core.state.trace
        self._ext: dict[str, Any] | None = None
        self._stop: StopReason | None = None
        self._process: Process | None = None
        self._changed = asyncio.Event()
        self._heartbeats = Heartbeats(core, f"msg_{entry.token}_heartbeat", options.heartbeat, self.emit)
        core.state.on_cancel = partial(self.stop, "canceled")
        core.state.on_event = self._on_event

    @property
    def is_waiting(self) -> bool:
        """Whether the command asked a question: the job occupies no slot until it runs again."""
        return self.entry.phase == "waiting"

    def emit(self, event: str, **more: Any) -> None:
        """Print an event about this job."""
        trace = {} if self._options.tracing is None else ids_of(self._carrier)
        self._reporter.emit(event, work_id=self.core.work_id, **{"from": self.message["sender"]}, **more, **trace)

    # execution

    async def run(self, slots: asyncio.Semaphore, *, reserved: bool) -> None:
        """Carry the job out from its phase in the journal on: run the command, in one of the `slots`, as often as it gets an answer
        to a question, and report. `reserved`: a slot is taken for it already."""
        while not self.is_waiting or await self._wait():
            if self.entry.phase != "finished":
                if not reserved:
                    await slots.acquire()
                reserved = False
                try:
                    await self._run_command()
                finally:
                    slots.release()
            if await self._report():
                self.entry.remove()
                return

    def fail_restarted(self) -> None:
        """Finish the job without running the command."""
        self._finish(failed(RESTARTED, restarted=True))

    def drop(self) -> None:
        """Forget the job: its work has ended without our report."""
        self.emit("dropped")
        self.entry.remove()

    def terminate_leftovers(self) -> int:
        """Terminate the processes of this job that a dead worker left running; how many there were. Blocks."""
        started = self.entry.last("started") or {}
        pid = int(started.get("pid") or 0)
        group = pid if pid and worker_group.is_same_process(pid, started.get("started")) else 0
        return worker_group.end(self.entry.token, group, self._options.grace)

    def stop(self, reason: StopReason) -> None:
        """Stop the command now, or as soon as it is started."""
        self._stop = self._stop or reason
        if self._process is not None:
            self._process.stop(reason)

    def check_lease(self) -> None:
        """Raises JobCanceled when another consumer has taken the work."""
        if self.core.state.lost:
            raise JobCanceled("another consumer has taken the work")

    async def _run_command(self) -> None:
        span = self._begin_span()
        try:
            self.entry.write("starting", began_ns=time.time_ns())
            process = await self._start()
        except (OSError, ValueError) as error:
            why = f"the command cannot be started: {getattr(error, 'strerror', None) or error}"
            if span is not None:
                span.end(why)
            self._finish(failed(why))
            return
        self.entry.write("started", pid=process.pid, started=worker_group.start_time(process.pid))
        self.emit("started", pid=process.pid)
        over = asyncio.Event()
        beats = asyncio.create_task(self._heartbeats.send(process, partial(self._progress, process), self._ext, over))
        try:
            ended = await in_thread(partial(process.run, self._options.time_limit, self._options.grace))
            self._process = None
            over.set()
            if span is not None:
                span.end("" if ended.code == 0 else f"exit code {ended.code}")
            self.check_lease()
            self._finish(await in_thread(partial(self._with_artifacts, self._outcome(process, ended))))
            await beats  # none may follow the report
        finally:
            beats.cancel()

    def _begin_span(self) -> Span | None:
        """A span for one run of the command (OpenTelemetry's conventions for agents); what is sent meanwhile is below it."""
        if self._options.tracing is None:
            return None
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self.message["to"],
            "gen_ai.conversation.id": self.core.work_id,
        }
        span = self._options.tracing.start("invoke_agent", "internal", self._carrier, attributes)
        self._ext = self._carrier = span.carrier
        return span

    async def _start(self) -> Process:
        """Start the command. Raises OSError and ValueError."""
        entry, options = self.entry, self._options
        questions = entry.questions()
        conversation = turns(questions, await self._heard()) if questions else []
        socket = self._client.core.endpoint.path or None
        command = options.command_line(str(entry.input_path), self.message, socket)
        worker_input.write(entry.input_path, await self._input(conversation))
        env = worker_input.environment(
            worker_input.inherited(os.environ, options.pass_env),
            self.message,
            entry.token,
            entry.input_path,
            answer=latest_answer(conversation),
            socket=socket,
            carrier=self._carrier,
        )
        with entry.input_path.open("rb") as stdin:
            process = Process(
                command,
                cwd=options.cwd,
                env=env,
                stdin=stdin,
                token=entry.token,
                keep=self.keep,
                supervised=options.supervised,
            )
        self._process = process
        if self._stop is not None:
            process.stop(self._stop)
        return process

    async def _input(self, conversation: Sequence[Turn]) -> bytes:
        """The command's standard input. Raises OSError and ValueError."""
        return worker_input.written(self.message, conversation)

    def _outcome(self, process: Process, ended: ProcessExit) -> JobOutcome:
        """The outcome of the work, from the command's exit."""
        return outcome_of(process, ended, self._options.time_limit)

    def _progress(self, process: Process) -> str:
        """The latest progress line of the command; unescaped, empty when there is none."""
        return process.last_line()

    def _with_artifacts(self, end: JobOutcome) -> JobOutcome:
        """The outcome with the files that the command made, which are uploaded. Blocks."""
        if end.verb is None:
            return end
        root, core = self._options.cwd, self._client.core
        began_ns = next(record["began_ns"] for record in self.entry.records if record["phase"] == "starting")
        found = worker_artifacts.collect(self._options.artifacts, root, began_ns)
        api = Api(core.endpoint, core.timeout)
        found = worker_artifacts.upload_all(
            found,
            root,
            lambda stream, length, name: content_of(put(api, self.core.work_id, stream, length, name)),
        )
        result = {**(end.result or {}), **({"artifacts_skipped": found.skipped} if found.skipped else {})}
        return end._replace(result=result, artifacts=found.references)

    def _finish(self, end: JobOutcome) -> None:
        """Write the outcome to the journal; it is reported even if that fails (disk full)."""
        self.verb = end.verb
        self._note("finished", **end._asdict())
        self.emit("finished", verb=end.verb, message=end.message)

    # report

    async def _report(self) -> bool:
        """Send the terminal trace, then acknowledge the work's messages. False when the work waits for an answer instead."""
        finished = self.entry.last("finished")
        assert finished is not None
        self.verb = finished["verb"]
        question = await self._send_result(finished) if self.verb is not None else None
        if question is not None:
            await self._ask(question)
            return False
        await self.core.settle()
        return True

    def _note(self, phase: str, **fields: Any) -> None:
        """Write a record to the journal. If that fails, it is in memory only: repeating the step before is harmless."""
        try:
            self.entry.write(phase, **fields)
        except OSError as error:
            self.entry.records.append({"phase": phase, **fields})
            self.emit("problem", message=f"the journal cannot be written: {error.strerror}")

    async def _send_result(self, finished: dict[str, Any]) -> Question | None:
        """Send the result. The question instead, when the command asked one and waits for its answer."""
        question = await self._question() if finished["verb"] == "complete" else None
        if question is None:
            await self._send_end(finished)
        return question

    async def _send_end(self, finished: dict[str, Any]) -> None:
        verb, result = finished["verb"], finished["result"]
        action = WorkActionRequest(message=finished["message"], result=result, artifacts=finished["artifacts"] or None)
        try:
            sent = await self._send(verb, action, "end")
        except RefusedByDaemon as error:
            self.emit("problem", message=f"the result was refused: {error.message}")
            bare = {name: value for name, value in result.items() if name in ("exit_code", "duration_s")}
            action = WorkActionRequest(message="the result itself could not be sent", result=bare)
            sent = await self._send(verb, action, "end")
        self.emit("reported" if sent else "dropped", verb=verb)

    async def _send(self, verb: WorkVerb, action: WorkActionRequest, what: str) -> bool:
        """One action on the work, with a fixed id so that retries are idempotent; False when the work has ended or is not ours."""
        action.id, action.ext, action.replace_secrets = f"msg_{self.entry.token}_{what}", self._ext, True
        try:
            await self.core.act(verb, action)
        except (JobCanceled, Conflict):
            return False
        return True

    # questions

    async def _work(self) -> WorkResponse | None:
        """The work with its history; None when the daemon does not know it."""
        try:
            return await self._client.work(self.core.work_id, channel=self.core.channel)
        except NotFound:
            return None

    async def _received(self, since: int) -> list[dict[str, Any]]:
        """The messages of the initiator in the work after sequence `since`, oldest first, as the API gives them."""
        found: list[dict[str, Any]] = []
        while True:
            page = await self._client.messages(
                work_id=self.core.work_id,
                channel=self.core.channel,
                directions=frozenset({"in"}),
                kinds=OPENING_KINDS,
                since=since,
                limit=MAX_LIMIT,
            )
            found += [plain(message) for message in page.messages if message.outcome not in REFUSING_OUTCOMES]
            if len(page.messages) < MAX_LIMIT:
                return found
            since = page.next_since

    async def _heard(self) -> list[dict[str, Any]]:
        """The messages of the conversation that are not ours, oldest first."""
        return await self._received(self.core.seq)

    async def _question(self) -> Question | None:
        """The question that the command asked with `work need-input`; None when it asked none or has read the answer itself."""
        found = await self._work()
        since = (self.entry.last("waiting") or {}).get("question", self.core.seq)
        own = str(self.message["to"])
        steps = steps_of_run(found.history, own, since, self._heartbeats.prefix) if found is not None else []
        if found is None or not steps or found.work.state in TERMINAL_STATES:
            return None
        asked = Question(steps[0].seq, steps[0].message)
        if len(steps) == 1:
            if found.work.state != "needs_input":  # a heartbeat crossed the question
                await self._send("need-input", WorkActionRequest(message=asked.text), f"question_{asked.seq}")
            return asked
        answers = await self._received(asked.seq)
        return asked if any(message["delivery"] == "ready" for message in answers) else None

    async def _ask(self, question: Question) -> None:
        """From now on the work waits for the answer. The opening leaves the inbox: no lease outlives this process."""
        until = time.time() + self._options.answer_within
        asked = {"asked": question.asked} if question.asked else {}
        self._note("waiting", question=question.seq, text=question.text, until=until, **asked)
        await self.core.acknowledge()
        self.emit("asked", message=question.text, **asked)
        self.on_waiting()

    async def _wait(self) -> bool:
        """Wait for the answer. One counts however late it is read. False when the work has ended."""
        waiting = self.entry.records[-1]
        while True:
            self._changed.clear()
            if await self.core.has_ended():
                await self._give_up()
                await self.core.settle()
                self.drop()
                return False
            if await self._is_answered(waiting):
                self.emit("answered")
                self._heartbeats.reset()
                return True
            if time.time() >= waiting["until"]:
                why = f"no answer within {span(self._options.answer_within)}"
                text = waiting["text"]
                self._finish(failed(f"{why}: {text}" if text else why, question=text))
                return True
            while not self._changed.is_set() and (left := waiting["until"] - time.time()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(CLOCK_CHECK, left)):
                        await self._changed.wait()

    async def _is_answered(self, waiting: dict[str, Any]) -> bool:
        """Whether the answer to the question of this record is there; then it is acknowledged, and stays in the log."""
        if not await self._received(waiting["question"]):
            return False
        await self.core.read()
        return True

    async def _give_up(self) -> None:
        """The work has ended while its command waited for an answer."""

    def note_other(self, event: Event) -> None:
        """An event that is not in the work of this job."""

    def _on_event(self, event: Event | None) -> None:
        self._changed.set()
        if event is not None:
            self._heartbeats.note(event)


def plain(answer: msgspec.Struct) -> dict[str, Any]:
    """An answer of the daemon as the JSON object that it was."""
    document: dict[str, Any] = json.loads(msgspec.json.encode(answer))
    return document
