"""One job: from a leased message to the terminal trace. Each step is in the journal before the next one begins."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from aghbus.cli.app.message_text import TERMINAL
from aghbus.cli.app.text import span
from aghbus.cli.worker import artifacts as worker_artifacts
from aghbus.cli.worker import input as worker_input
from aghbus.cli.worker import process_group as worker_group
from aghbus.cli.worker.conversation import Question, Turn, latest_answer, steps_of_run, turns
from aghbus.cli.worker.daemon_client import FINAL_REFUSALS, DaemonClient
from aghbus.cli.worker.journal import JournalEntry
from aghbus.cli.worker.options import WorkerOptions
from aghbus.cli.worker.process import TAIL_BYTES, Process, ProcessExit, StopReason
from aghbus.cli.worker.reporter import Reporter
from aghbus.cli.worker.result import JobOutcome, failed, line, outcome_of
from aghbus.client.errors import ClientError, RefusedByDaemon
from aghbus.host.tracing import Span

_WITHHELD = "running; its last line is not shown, because it looks like a credential"
FORCED_AFTER = 3
"""Skipped heartbeats (nothing new to report) after which one is sent anyway."""
BUSY = "the worker is busy"
"""The message of a rejection when no slot is free."""
RESTARTED = "the worker was restarted while the command ran; it was not run again"


class Job:
    """One work of this worker. `run` is its thread; other threads call `stop`, `send_heartbeat` and `note_change`.

    A job whose command asked a question has no thread until `look` says `answered` or `expired` (`is_waiting`). `counts`:
    the outcome is part of the worker's exit code. `changed`: something happened in the work since the last look.
    """

    keep = TAIL_BYTES
    """How many bytes of the command's output are kept."""

    def __init__(self, entry: JournalEntry, options: WorkerOptions, client: DaemonClient, reporter: Reporter) -> None:
        taken = entry.records[0]
        self.message: dict[str, Any] = taken["item"]["message"]
        self.work_id: str = self.message["work_id"]
        self.channel: str = self.message["channel"]
        self.seq: int = taken["item"]["seq"]
        self.lease: str | None = taken["item"]["lease"]
        self.entry = entry
        self.verb: str | None = None
        self._sending: dict[str, Any] = {"channel": self.channel, "replace_secrets": True}
        self._carrier = worker_input.carrier(self.message)
        self.is_waiting = entry.phase == "waiting"
        self.changed = self.is_waiting
        self.counts = False
        self._options = options
        self._client = client
        self._reporter = reporter
        self._lock = threading.Lock()
        self._stop: StopReason | None = None
        self._process: Process | None = None
        self._unread = 0
        self._asking = False
        self._heartbeat_at = time.monotonic()
        self._heartbeat_text = ""

    @property
    def key(self) -> tuple[str, str]:
        """Channel and work id: a work id is unique only within its channel."""
        return self.channel, self.work_id

    @property
    def occupies_slot(self) -> bool:
        """Whether the job occupies a slot: from the lease or the answer until the command's exit is in the journal."""
        return not self.is_waiting and self.entry.phase not in ("finished", "reported")

    def emit(self, event: str, **more: Any) -> None:
        """Print an event about this job."""
        self._reporter.emit(event, work_id=self.work_id, **{"from": self.message["sender"]}, **more)

    # decision

    def accept(self) -> bool:
        """Send receipt `accepted`; False when the work has ended. Raises RetryAbandoned."""
        return self._send("accept", {}, "accept")

    def reject(self) -> bool:
        """Send receipt `rejected` with reason `busy`; False when the work has ended. Raises RetryAbandoned."""
        return self._send("reject", {"reason": "busy", "message": BUSY}, "reject")

    # execution

    def run(self) -> None:
        """Run the command unless it has run already, and report. Raises RetryAbandoned."""
        if self.entry.phase in ("taken", "starting", "started", "waiting"):
            end = self._run_command()
            started = next((record for record in self.entry.records if record["phase"] == "starting"), {})
            self._finish(end, int(started.get("began_ns", 0)))
        self.report()

    def fail(self, message: str, **result: Any) -> None:
        """Finish the job without running the command."""
        self._finish(failed(message, **result), 0)

    def terminate_leftovers(self) -> int:
        """Terminate the processes of this job that a dead worker left running; how many there were."""
        started = self.entry.last("started") or {}
        pid = int(started.get("pid") or 0)
        group = pid if pid and worker_group.is_same_process(pid, started.get("started")) else 0
        return worker_group.end(self.entry.token, group, self._options.grace)

    def stop(self, reason: StopReason) -> None:
        """Stop the command now, or as soon as it is started."""
        with self._lock:
            self._stop = self._stop or reason
            if self._process is not None:
                self._process.stop(reason)

    def _run_command(self) -> JobOutcome:
        span = self._begin_span()
        try:
            self.entry.write("starting", began_ns=time.time_ns())
            process = self._start(self._conversation())
        except (OSError, ValueError) as error:
            why = f"the command cannot be started: {getattr(error, 'strerror', None) or error}"
            if span is not None:
                span.end(why)
            return failed(why)
        self.entry.write("started", pid=process.pid, started=worker_group.start_time(process.pid))
        self.emit("started", pid=process.pid)
        ended = process.run(self._options.time_limit, self._options.grace)
        with self._lock:
            self._process = None
        if span is not None:
            span.end("" if ended.code == 0 else f"exit code {ended.code}")
        return self._outcome(process, ended)

    def _begin_span(self) -> Span | None:
        """A span for one run of the command (OpenTelemetry's conventions for agents); what is sent meanwhile is below it."""
        if self._options.tracing is None:
            return None
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self.message["to"],
            "gen_ai.conversation.id": self.work_id,
        }
        span = self._options.tracing.start("invoke_agent", "internal", self._carrier, attributes)
        self._carrier = span.carrier
        self._sending["ext"] = span.carrier
        return span

    def _start(self, conversation: Sequence[Turn]) -> Process:
        entry, options = self.entry, self._options
        command = options.command_line(str(entry.input_path), self.message)
        worker_input.write(entry.input_path, self._input(conversation))
        env = worker_input.environment(
            worker_input.inherited(os.environ, options.pass_env),
            self.message,
            entry.token,
            entry.input_path,
            answer=latest_answer(conversation),
            socket=self._client.api.endpoint.path or None,
            carrier=self._carrier,
        )
        with entry.input_path.open("rb") as stdin:
            process = Process(command, cwd=options.cwd, env=env, stdin=stdin, token=entry.token, keep=self.keep)
        with self._lock:
            self._process = process
            if self._stop is not None:
                process.stop(self._stop)
        return process

    def _conversation(self) -> list[Turn]:
        """The conversation after the opening; empty until the command has asked. Raises RetryAbandoned."""
        questions = self.entry.questions()
        return turns(questions, self._client.received(self.work_id, self.channel, self.seq)) if questions else []

    def _input(self, conversation: Sequence[Turn]) -> bytes:
        """The command's standard input. Raises OSError, ValueError or RetryAbandoned."""
        return worker_input.written(self.message, conversation)

    def _outcome(self, process: Process, ended: ProcessExit) -> JobOutcome:
        """The outcome of the work, from the command's exit."""
        return outcome_of(process, ended, self._options.time_limit)

    def _progress(self, process: Process) -> str:
        """The latest progress line of the command; unescaped, empty when there is none."""
        return process.last_line()

    def _finish(self, end: JobOutcome, began_ns: int) -> None:
        """Write the outcome to the journal; it is reported even if that fails (disk full)."""
        if end.verb is not None and began_ns:
            root = self._options.cwd
            found = worker_artifacts.collect(self._options.artifacts, root, began_ns)
            found = worker_artifacts.upload_all(found, root, partial(self._client.put_artifact, self.work_id))
            result = {**(end.result or {}), **({"artifacts_skipped": found.skipped} if found.skipped else {})}
            end = end._replace(result=result, artifacts=found.references)
        self.verb = end.verb
        self._note("finished", **end._asdict())
        self.emit("finished", verb=end.verb, message=end.message)

    # report

    def report(self) -> None:
        """Send the terminal trace, then acknowledge the work's messages; or wait for an answer. Raises RetryAbandoned."""
        if self.entry.phase != "reported":
            finished = self.entry.last("finished")
            assert finished is not None
            self.verb = finished["verb"]
            question = self._send_result(self.verb, finished) if self.verb is not None else None
            if question is not None:
                self._wait(question)
                return
            self._note("reported")
        self.close()

    def close(self) -> None:
        """Acknowledge all messages of the ended work and remove the journal entry. Raises RetryAbandoned."""
        self._client.acknowledge(self.seq)
        self._client.acknowledge_all(self.work_id, self.channel)
        self.entry.remove()

    def _note(self, phase: str, **fields: Any) -> None:
        """Write a record to the journal. If that fails, it is in memory only: repeating the step before is harmless."""
        try:
            self.entry.write(phase, **fields)
        except OSError as error:
            self.entry.records.append({"phase": phase, **fields})
            self.emit("problem", message=f"the journal cannot be written: {error.strerror}")

    def _send_result(self, verb: str, finished: dict[str, Any]) -> Question | None:
        """Send the result. The question instead, when the command asked one and waits for its answer. Raises RetryAbandoned."""
        question = self._question() if verb == "complete" else None
        if question is None:
            self._send_end(verb, finished)
        return question

    def _send_end(self, verb: str, finished: dict[str, Any]) -> None:
        body = {name: finished[name] for name in ("message", "result")}
        body["artifacts"] = finished["artifacts"] or None
        try:
            sent = self._send(verb, body, "end")
        except RefusedByDaemon as error:
            self.emit("problem", message=f"the result was refused: {error.message}")
            bare = {name: value for name, value in finished["result"].items() if name in ("exit_code", "duration_s")}
            sent = self._send(verb, {"message": "the result itself could not be sent", "result": bare}, "end")
        self.emit("reported" if sent else "dropped", verb=verb)

    def _send(self, verb: str, body: dict[str, Any], what: str) -> bool:
        """One step of the work, with a fixed id so that retries are idempotent; False when the work has ended or is not ours."""
        full = {**body, **self._sending, "id": f"msg_{self.entry.token}_{what}"}
        try:
            self._client.with_retry(lambda: self._client.step(self.work_id, verb, full))
        except RefusedByDaemon as error:
            if error.code not in FINAL_REFUSALS:
                raise
            return False
        return True

    # questions

    @property
    def waits_until(self) -> float:
        """When a waiting job expires, in Unix seconds."""
        return float((self.entry.last("waiting") or {})["until"])

    def look(self, now: float) -> Literal["ended", "answered", "expired", "waiting"]:
        """What became of a waiting job at `now` (Unix seconds). An answer counts however late it is read. Raises RetryAbandoned."""
        self.changed = False
        state = self._client.state(self.work_id, self.channel)
        if state is None or state in TERMINAL:
            return "ended"
        waiting = self.entry.last("waiting")
        assert waiting is not None
        if self._client.received(self.work_id, self.channel, waiting["question"]):
            return "answered"
        return "expired" if now >= self.waits_until else "waiting"

    def resume(self) -> None:
        """Acknowledge the answer, which stays in the log, before `run`. Raises RetryAbandoned."""
        self._client.acknowledge_all(self.work_id, self.channel)
        self.emit("answered")
        self._asking = self.is_waiting = False
        self._unread = 0

    def expire(self) -> None:
        """Finish the job as failed, because no answer came in time; then `run` reports it."""
        waiting = self.entry.last("waiting")
        assert waiting is not None
        why = f"no answer within {span(self._options.answer_within)}"
        self.fail(f"{why}: {waiting['text']}" if waiting["text"] else why, question=waiting["text"])
        self.is_waiting = False

    def _question(self) -> Question | None:
        """The question that the command asked with `work need-input`; None when it asked none or has read the answer itself."""
        work = self._client.work(self.work_id, self.channel)
        since = (self.entry.last("waiting") or {}).get("question", self.seq)
        own = str(self.message["to"])
        steps = steps_of_run(work["history"], own, since, self._heartbeat_id) if work is not None else []
        if work is None or not steps or work["work"]["state"] in TERMINAL:
            return None
        asked = Question(steps[0]["seq"], steps[0]["message"])
        if len(steps) == 1:
            if work["work"]["state"] != "needs_input":  # a heartbeat crossed the question
                self._send("need-input", {"message": asked.text}, f"question_{asked.seq}")
            return asked
        answers = self._client.received(self.work_id, self.channel, asked.seq)
        return asked if any(message["delivery"] == "ready" for message in answers) else None

    def _wait(self, question: Question) -> None:
        """Wait for the answer without a thread. The opening leaves the inbox, since its lease ends earlier."""
        until = time.time() + self._options.answer_within
        self._note("waiting", question=question.seq, text=question.text, until=until)
        self._client.acknowledge(self.seq)
        self.emit("asked", message=question.text)
        self.changed = self.is_waiting = True  # the answer may have come already

    # heartbeats

    def note_change(self, state: str | None, *, message: bool) -> None:
        """Note an event of the work, which is in `state` now; `message`: the initiator said something.

        The command reads its input once: the next trace counts the messages that it did not get. While it asks, there are no
        heartbeats, because they would withdraw the question.
        """
        self._unread += message and not self._asking
        self._asking = state == "needs_input"
        self.changed = True

    @property
    def _heartbeat_id(self) -> str:
        return f"msg_{self.entry.token}_heartbeat"

    def send_heartbeat(self, now: float) -> None:
        """Send a `working` trace if one is due at `now` (monotonic seconds)."""
        process = self._process
        if process is None or self._asking or now - self._heartbeat_at < self._options.heartbeat:
            return
        latest = self._progress(process)
        text = line(latest) or f"running for {span(process.seconds)}"
        unread, self._unread = self._unread, 0
        quiet = text == self._heartbeat_text or not latest
        if quiet and not unread and now - self._heartbeat_at < FORCED_AFTER * self._options.heartbeat:
            return
        self._heartbeat_at, self._heartbeat_text = now, text
        self._update(text, unread)

    def _update(self, text: str, unread: int) -> None:
        note = (
            f" ({unread} message{'s' * (unread > 1)} not delivered: the command reads its input only at start)"
            if unread
            else ""
        )
        body = {**self._sending, "message": text + note, "id": f"{self._heartbeat_id}_{time.time_ns()}"}
        try:
            self._client.step(self.work_id, "update", body)
            self.emit("heartbeat", message=text + note)
            if unread:
                self._client.acknowledge_all(self.work_id, self.channel)
        except RefusedByDaemon as error:
            if error.code in FINAL_REFUSALS:
                self.stop("canceled")
            elif error.code == "secret_like" and text != _WITHHELD:  # a heartbeat without the command's output
                self._update(_WITHHELD, unread)
        except ClientError:
            return  # the daemon is unreachable: the next heartbeat retries
