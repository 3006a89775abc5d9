"""One job: from a leased message to the terminal trace. Each step is in the journal before the next one begins."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import Any

from aghbus.cli.app.text import span
from aghbus.cli.worker import artifacts as worker_artifacts
from aghbus.cli.worker import input as worker_input
from aghbus.cli.worker import process_group as worker_group
from aghbus.cli.worker.daemon_client import FINAL_REFUSALS, DaemonClient
from aghbus.cli.worker.journal import JournalEntry
from aghbus.cli.worker.options import WorkerOptions
from aghbus.cli.worker.process import TAIL_BYTES, Process, ProcessExit, StopReason
from aghbus.cli.worker.reporter import Reporter
from aghbus.cli.worker.result import JobOutcome, failed, line, outcome_of
from aghbus.client.errors import ClientError, RefusedByDaemon

_WITHHELD = "running; its last line is not shown, because it looks like a credential"
FORCED_AFTER = 3
"""Skipped heartbeats (nothing new to report) after which one is sent anyway."""
BUSY = "the worker is busy"
"""The message of a rejection when no slot is free."""
RESTARTED = "the worker was restarted while the command ran; it was not run again"


class Job:
    """One work of this worker. `run` is its thread; other threads call `stop`, `send_heartbeat` and `note_unread_message`."""

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
        self._sending = {"channel": self.channel, "replace_secrets": True}
        self._options = options
        self._client = client
        self._reporter = reporter
        self._lock = threading.Lock()
        self._stop: StopReason | None = None
        self._process: Process | None = None
        self._unread = 0
        self._heartbeat_at = time.monotonic()
        self._heartbeat_text = ""

    @property
    def key(self) -> tuple[str, str]:
        """Channel and work id: a work id is unique only within its channel."""
        return self.channel, self.work_id

    @property
    def occupies_slot(self) -> bool:
        """Whether the job occupies a slot: from the lease until the command's exit is in the journal."""
        return self.entry.phase not in ("finished", "reported")

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
        if self.entry.phase in ("taken", "starting", "started"):
            began = time.time_ns()
            self._finish(self._run_command(), began)
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
        try:
            self.entry.write("starting")
            process = self._start()
        except (OSError, ValueError) as error:
            return failed(f"the command cannot be started: {getattr(error, 'strerror', None) or error}")
        self.entry.write("started", pid=process.pid, started=worker_group.start_time(process.pid))
        self.emit("started", pid=process.pid)
        ended = process.run(self._options.time_limit, self._options.grace)
        with self._lock:
            self._process = None
        return self._outcome(process, ended)

    def _start(self) -> Process:
        entry, options = self.entry, self._options
        worker_input.write(entry.input_path, self._input())
        base = worker_input.inherited(os.environ, options.pass_env)
        env = worker_input.environment(base, self.message, entry.token, entry.input_path)
        with entry.input_path.open("rb") as stdin:
            command = options.command_line(str(entry.input_path))
            process = Process(command, cwd=options.cwd, env=env, stdin=stdin, token=entry.token, keep=self.keep)
        with self._lock:
            self._process = process
            if self._stop is not None:
                process.stop(self._stop)
        return process

    def _input(self) -> bytes:
        """The command's standard input. Raises OSError, ValueError or RetryAbandoned."""
        return worker_input.written(self.message)

    def _outcome(self, process: Process, ended: ProcessExit) -> JobOutcome:
        """The outcome of the work, from the command's exit."""
        return outcome_of(process, ended, self._options.time_limit)

    def _progress(self, process: Process) -> str:
        """The latest progress line of the command; unescaped, empty when there is none."""
        return process.last_line()

    def _finish(self, end: JobOutcome, began_ns: int) -> None:
        """Write the outcome to the journal. If that fails (disk full), the result is reported anyway."""
        if end.verb is not None and began_ns:
            root = self._options.cwd
            found = worker_artifacts.collect(self._options.artifacts, root, began_ns)
            found = worker_artifacts.upload_all(found, root, partial(self._client.put_artifact, self.work_id))
            result = {**(end.result or {}), **({"artifacts_skipped": found.skipped} if found.skipped else {})}
            end = end._replace(result=result, artifacts=found.references)
        self.verb = end.verb
        try:
            self.entry.write("finished", **end._asdict())
        except OSError as error:
            self.entry.records.append({"phase": "finished", **end._asdict()})
            self.emit("problem", message=f"the journal cannot be written: {error.strerror}")
        self.emit("finished", verb=end.verb, message=end.message)

    # report

    def report(self) -> None:
        """Send the terminal trace, then acknowledge the work's messages. Raises RetryAbandoned."""
        if self.entry.phase != "reported":
            finished = self.entry.last("finished")
            assert finished is not None
            self.verb = finished["verb"]
            if self.verb is not None:
                self._send_result(self.verb, finished)
            self._note_reported()
        self.close()

    def close(self) -> None:
        """Acknowledge all messages of the ended work and remove the journal entry. Raises RetryAbandoned."""
        self._client.acknowledge(self.seq)
        self._client.acknowledge_all(self.work_id, self.channel)
        self.entry.remove()

    def _note_reported(self) -> None:
        try:
            self.entry.write("reported")
        except OSError as error:  # reporting twice is harmless: the trace has a fixed id
            self.emit("problem", message=f"the journal cannot be written: {error.strerror}")

    def _send_result(self, verb: str, finished: dict[str, Any]) -> None:
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

    # heartbeats

    def note_unread_message(self) -> None:
        """Count a message that arrived while the command ran. The command reads its input once; the next trace says so."""
        self._unread += 1

    def send_heartbeat(self, now: float) -> None:
        """Send a `working` trace if one is due at `now` (monotonic seconds)."""
        process = self._process
        if process is None or now - self._heartbeat_at < self._options.heartbeat:
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
        try:
            self._client.step(self.work_id, "update", {**self._sending, "message": text + note})
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
