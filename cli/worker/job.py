"""One job: from a leased message to the terminal trace, every step in the journal before the next one."""

from __future__ import annotations

import os
import threading
import time
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

_WITHHELD = "running; its last line is not shown, because it looks like it holds a credential"
FORCED_AFTER = 3
"""Heartbeats without anything new after which one is sent all the same."""
BUSY = "the worker is busy"
"""What a work that found no free slot is refused with."""
RESTARTED = "the worker was restarted while the command ran; it was not run again"


class Job:
    """One work in our hands. `run` is its thread; `stop`, `send_heartbeat` and `note_unread_message` are for others."""

    keep = TAIL_BYTES
    """Bytes of what the command prints that are kept."""

    def __init__(self, entry: JournalEntry, plan: WorkerOptions, client: DaemonClient, reporter: Reporter) -> None:
        taken = entry.records[0]
        self.message: dict[str, Any] = taken["item"]["message"]
        self.work_id: str = self.message["work_id"]
        self.channel: str = self.message["channel"]
        self.seq: int = taken["item"]["seq"]
        self.lease: str | None = taken["item"]["lease"]
        self.entry = entry
        self.verb: str | None = None
        self._plan = plan
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
        """What names the work in this daemon: a work id is unique in its channel only."""
        return self.channel, self.work_id

    @property
    def occupies_slot(self) -> bool:
        """Whether it takes a slot: from the lease on until the command's end is in the journal. Reporting takes none."""
        return self.entry.phase not in ("finished", "reported")

    def emit(self, event: str, **more: Any) -> None:
        """An event about this job for whoever reads our output."""
        self._reporter.emit(event, work_id=self.work_id, **{"from": self.message["sender"]}, **more)

    # before

    def accept(self) -> bool:
        """Receipt `accepted`; false when the work has ended meanwhile. Raises GaveUp."""
        return self._send("accept", {}, "accept")

    def reject(self) -> bool:
        """Receipt `rejected` with reason busy; false when the work has ended meanwhile. Raises GaveUp."""
        return self._send("reject", {"reason": "busy", "message": BUSY}, "reject")

    # the run

    def run(self) -> None:
        """Run the command unless it has run already, and report. Raises GaveUp."""
        if self.entry.phase in ("taken", "starting", "started"):
            began = time.time_ns()
            self._finish(self._run_command(), began)
        self.report()

    def fail(self, message: str, **result: Any) -> None:
        """End the job without running anything."""
        self._finish(failed(message, **result), 0)

    def terminate_leftovers(self) -> int:
        """End what a worker that died left running of this job; how many processes that was."""
        started = self.entry.last("started") or {}
        pid = int(started.get("pid") or 0)
        group = pid if pid and worker_group.is_same_process(pid, started.get("started")) else 0
        return worker_group.end(self.entry.token, group, self._plan.grace)

    def stop(self, reason: StopReason) -> None:
        """End the command: now, or as soon as it has been started."""
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
        ended = process.run(self._plan.time_limit, self._plan.grace)
        with self._lock:
            self._process = None
        return self._outcome(process, ended)

    def _start(self) -> Process:
        entry, plan = self.entry, self._plan
        worker_input.write(entry.input_path, self._input())
        env = worker_input.environment(os.environ, self.message, entry.token, entry.input_path)
        with entry.input_path.open("rb") as stdin:
            process = Process(plan.command, cwd=plan.cwd, env=env, stdin=stdin, token=entry.token, keep=self.keep)
        with self._lock:
            self._process = process
            if self._stop is not None:
                process.stop(self._stop)
        return process

    def _input(self) -> bytes:
        """What the command gets on standard input. Raises OSError, ValueError, GaveUp."""
        return worker_input.written(self.message)

    def _outcome(self, process: Process, ended: ProcessExit) -> JobOutcome:
        """What the command's end means for the work."""
        return outcome_of(process, ended, self._plan.time_limit)

    def _progress(self, process: Process) -> str:
        """The command's latest line that says how far it is; unescaped, empty when there is none."""
        return process.last_line()

    def _finish(self, end: JobOutcome, began_ns: int) -> None:
        """Put the end into the journal. A full disk does not keep the result from its initiator."""
        if end.verb is not None and began_ns:
            found = worker_artifacts.collect(self._plan.artifacts, self._plan.cwd, began_ns)
            result = {**(end.result or {}), **({"artifacts_skipped": found.skipped} if found.skipped else {})}
            end = end._replace(result=result, artifacts=found.references)
        self.verb = end.verb
        try:
            self.entry.write("finished", **end._asdict())
        except OSError as error:
            self.entry.records.append({"phase": "finished", **end._asdict()})
            self.emit("problem", message=f"the journal cannot be written: {error.strerror}")
        self.emit("finished", verb=end.verb, message=end.message)

    # after

    def report(self) -> None:
        """Send the terminal trace, and acknowledge the work's messages once the daemon has said yes. Raises GaveUp."""
        if self.entry.phase != "reported":
            finished = self.entry.last("finished")
            assert finished is not None
            self.verb = finished["verb"]
            if self.verb is not None:
                self._send_result(self.verb, finished)
            self._note_reported()
        self.close()

    def close(self) -> None:
        """The work has ended: its messages are dealt with, and so is the job. Raises GaveUp."""
        self._client.acknowledge(self.seq)
        self._client.acknowledge_all(self.work_id, self.channel)
        self.entry.remove()

    def _note_reported(self) -> None:
        try:
            self.entry.write("reported")
        except OSError as error:  # the trace's id makes a second report harmless
            self.emit("problem", message=f"the journal cannot be written: {error.strerror}")

    def _send_result(self, verb: str, finished: dict[str, Any]) -> None:
        ask = {name: finished[name] for name in ("message", "result")}
        ask["artifacts"] = finished["artifacts"] or None
        try:
            sent = self._send(verb, ask, "end")
        except RefusedByDaemon as error:
            self.emit("problem", message=f"the result was refused: {error.message}")
            bare = {name: value for name, value in finished["result"].items() if name in ("exit_code", "duration_s")}
            sent = self._send(verb, {"message": "the result itself could not be sent", "result": bare}, "end")
        self.emit("reported" if sent else "dropped", verb=verb)

    def _send(self, verb: str, ask: dict[str, Any], what: str) -> bool:
        """One step of the work under an id of its own, so that sending it again changes nothing; false when it is moot."""
        full = {**ask, "channel": self.channel, "id": f"msg_{self.entry.token}_{what}"}
        try:
            self._client.with_retry(lambda: self._client.step(self.work_id, verb, full))
        except RefusedByDaemon as error:
            if error.code not in FINAL_REFUSALS:
                raise
            return False
        return True

    # meanwhile

    def note_unread_message(self) -> None:
        """Somebody said something in the work while the command ran: it takes no further input, and the next trace says so."""
        self._unread += 1

    def send_heartbeat(self, now: float) -> None:
        """Send a `working` trace when one is due at `now` (monotonic seconds)."""
        process = self._process
        if process is None or now - self._heartbeat_at < self._plan.heartbeat:
            return
        latest = self._progress(process)
        text = line(latest) or f"running for {span(process.seconds)}"
        unread, self._unread = self._unread, 0
        quiet = text == self._heartbeat_text or not latest
        if quiet and not unread and now - self._heartbeat_at < FORCED_AFTER * self._plan.heartbeat:
            return
        self._heartbeat_at, self._heartbeat_text = now, text
        self._update(text, unread)

    def _update(self, text: str, unread: int) -> None:
        note = f" ({unread} message{'s' * (unread > 1)} not read: the command takes its input once)" if unread else ""
        try:
            self._client.step(self.work_id, "update", {"channel": self.channel, "message": text + note})
            self.emit("heartbeat", message=text + note)
            if unread:
                self._client.acknowledge_all(self.work_id, self.channel)
        except RefusedByDaemon as error:
            if error.code in FINAL_REFUSALS:
                self.stop("canceled")
            elif error.code == "secret_like" and text != _WITHHELD:  # a sign of life without what the command has said
                self._update(_WITHHELD, unread)
        except ClientError:
            return  # the daemon is away: the next heartbeat tells
