"""The worker behind `aghctl serve`: takes works while slots are free, runs each in a thread, and drains before it exits.

Threads: the main thread takes, accepts and rejects works; one thread per job runs the command and reports (job.py); two
follow the daemon's events and send heartbeats (watch.py).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from aghbus.cli.app.errors import INTERRUPTED, NO, YES
from aghbus.cli.app.message_text import TERMINAL
from aghbus.cli.app.output import Output
from aghbus.cli.worker.daemon_client import LEASE_MARGIN, DaemonClient, RetryAbandoned, opens
from aghbus.cli.worker.job import BUSY, RESTARTED, Job
from aghbus.cli.worker.journal import Journal, JournalEntry
from aghbus.cli.worker.options import WorkerOptions
from aghbus.cli.worker.reporter import Reporter
from aghbus.cli.worker.wakeup import Wakeup
from aghbus.cli.worker.watch import EventWatcher, send_heartbeats
from aghbus.client.api import Api
from aghbus.client.errors import ClientError, RefusedByDaemon, Unreachable

POLL_INTERVAL = 5.0
"""Seconds between polls for works: releasing a message by another consumer makes no event."""
MIN_WAIT = 0.05
"""Shortest wait in seconds for the expiry of a question, also while the clock of the machine is set back."""
RETRY_INTERVAL = 1.0
"""Seconds between attempts while the daemon is unreachable."""
MAX_WAITING = 1_000
"""Works that may wait for answers; beyond that the worker is busy."""
LEASED_ELSEWHERE_PAUSE = 15.0
"""Seconds for which a work is skipped whose message is leased by another consumer."""
FINAL_REPORT_TIME = 5.0
"""Seconds for reporting to an unreachable daemon after all commands have been terminated."""


class Worker:
    """One `aghctl serve`, or `aghctl bridge FORMAT -- COMMAND`. `run` returns the exit code."""

    def __init__(
        self, options: WorkerOptions, api: Api, journal: Journal, output: Output, make_job: Callable[..., Job] = Job
    ) -> None:
        """`make_job` creates a job from a journal entry, the options, the client and the reporter."""
        self.options = options
        self._make_job = make_job
        self.wakeup = Wakeup()
        self.client = DaemonClient(api, self._stop_retrying)
        self._api = api
        self._journal = journal
        self._reporter = Reporter(output, self.wakeup.wake)
        self._jobs: dict[tuple[str, str], Job] = {}
        self._lock = threading.Lock()
        self._close_at = float("inf")
        self._taken = 0
        self._all_completed = True
        self._unreported = 0
        self._skip_until: dict[tuple[str, str], float] = {}

    def jobs(self) -> list[Job]:
        """The jobs of this worker."""
        with self._lock:
            return list(self._jobs.values())

    def job(self, channel: str, work_id: str) -> Job | None:
        """The job of a work; None when this worker has none."""
        with self._lock:
            return self._jobs.get((channel, work_id))

    def wake(self) -> None:
        """Make the main thread look for works."""
        self.wakeup.wake()

    def run(self, since: int) -> int:
        """Recover the jobs of dead workers, then serve until a signal or the last job; follow events after sequence `since`."""
        with self.wakeup.listening():
            watcher = EventWatcher(self, self._api, since)
            threading.Thread(target=watcher.run, name="events", daemon=True).start()
            beats = (self, self.options.heartbeat)
            threading.Thread(target=send_heartbeats, args=beats, name="heartbeats", daemon=True).start()
            self._recover()
            self._reporter.emit(
                "ready", capabilities=list(self.options.capabilities), concurrency=self.options.concurrency
            )
            while not self._stopping and not self._reached_max_jobs:
                self.wakeup.wait(min(self._continue_waiting(), self._take_works()))
            self._drain()
        if self.options.tracing is not None:
            self.options.tracing.close()
        return self._exit_code()

    @property
    def _stopping(self) -> bool:
        return bool(self.wakeup.signals) or self._reporter.lost

    @property
    def _reached_max_jobs(self) -> bool:
        return self.options.max_jobs is not None and self._taken >= self.options.max_jobs

    # taking work

    def _take_works(self) -> float:
        """Take works while slots are free. Returns the seconds to wait until the next poll."""
        try:
            works = self.client.submitted()
            self._prune_skipped(works)
            room = self.options.queue
            for work in works:
                if self._stopping or self._reached_max_jobs:
                    break
                if self._takes_more and room < self.options.queue:
                    return 0.0  # a slot has become free: the oldest is next
                if self._takes_more or room <= 0:
                    self._consider_work(work)
                elif not self._skips(work):
                    room -= 1  # it waits
        except RetryAbandoned:
            return 0.0
        except ClientError as error:
            if not error.is_transient:
                raise
            return RETRY_INTERVAL
        return POLL_INTERVAL

    @property
    def _free(self) -> bool:
        return sum(job.occupies_slot for job in self.jobs()) < self.options.concurrency

    @property
    def _takes_more(self) -> bool:
        return self._free and len(self.jobs()) < self.options.concurrency + MAX_WAITING

    def _prune_skipped(self, works: list[dict[str, Any]]) -> None:
        waiting = {(work["channel"], work["work_id"]) for work in works}
        self._skip_until = {key: until for key, until in self._skip_until.items() if key in waiting}

    def _skips(self, work: dict[str, Any]) -> bool:
        key = (work["channel"], work["work_id"])
        return self._skip_until.get(key, 0.0) > time.monotonic() or self.job(*key) is not None

    def _consider_work(self, work: dict[str, Any]) -> None:
        """Take a work that matches the options and is not leased by another consumer; reject it when no slot is free."""
        key = (work["channel"], work["work_id"])
        if self._skips(work):
            return
        if self.options.accept:
            opening = self.client.opening(work)
            if opening is None or not self.options.fits(opening):
                self._skip_until[key] = float("inf")
                return
        item = self.client.lease_next(work["work_id"], self.options.time_limit + LEASE_MARGIN)
        if item is None:
            self._skip_until[key] = time.monotonic() + LEASED_ELSEWHERE_PAUSE
        elif item["message"]["channel"] != work["channel"] or not opens(item):
            self.client.release(item["seq"], item["lease"])
            # Another consumer acknowledged its opening, and may still accept the work.
            self._skip_until[key] = float("inf")
        else:
            self._take_item(item)

    def _take_item(self, item: dict[str, Any]) -> None:
        try:
            entry = self._journal.begin(seq=item["seq"], command=list(self.options.command), item=item)
        except OSError as error:  # without a journal nothing is started
            self._return(item, f"the journal cannot be written: {error.strerror}", LEASED_ELSEWHERE_PAUSE)
            return
        job = self._make_job(entry, self.options, self.client, self._reporter)
        job.emit("taken")
        try:
            if self._takes_more:
                self._accept(job)
            else:
                self._reject(job)
        except RefusedByDaemon as error:
            self._discard(job)
            entry.remove()
            self._return(item, f"the daemon refused: {error.message}", float("inf"))
        except BaseException:
            self._discard(job)
            entry.leave()
            raise

    def _return(self, item: dict[str, Any], why: str, pause: float) -> None:
        """Release a message, and skip its work for `pause` seconds."""
        work_id, channel = item["message"]["work_id"], item["message"]["channel"]
        self._reporter.emit("problem", work_id=work_id, message=why)
        self._skip_until[(channel, work_id)] = time.monotonic() + pause
        self.client.release(item["seq"], item["lease"])

    def _accept(self, job: Job) -> None:
        self._register_job(job)  # before it is accepted, so that no cancellation is missed
        if job.accept():
            job.emit("accepted")
            self._taken += 1
            job.counts = True
            self._start(job)
        else:
            job.emit("dropped")
            job.close()
            self._discard(job)

    def _reject(self, job: Job) -> None:
        if job.reject():
            job.emit("rejected", reason="busy", message=BUSY)
        else:
            job.emit("dropped")
        job.close()

    # running

    def _start(self, job: Job) -> None:
        threading.Thread(target=self._run_job, args=(job,), name=job.entry.token, daemon=True).start()

    def _run_job(self, job: Job) -> None:
        """The thread of a job. An error affects only this job, which stays in the journal for the next worker."""
        try:
            job.run()
        except RetryAbandoned:
            self._leave_in_journal(job, "unreported")
        except Exception as error:
            self._leave_in_journal(job, "problem", message=f"{type(error).__name__}: {error}")
        finally:
            if job.is_waiting:
                self.wakeup.wake()
            else:
                self._all_completed = self._all_completed and (job.verb == "complete" or not job.counts)
                self._discard(job)

    def _leave_in_journal(self, job: Job, event: str, **more: Any) -> None:
        job.emit(event, **more)
        self._unreported += 1
        job.entry.leave()

    def _register_job(self, job: Job) -> None:
        with self._lock:
            self._jobs[job.key] = job

    def _discard(self, job: Job) -> None:
        with self._lock:
            self._jobs.pop(job.key, None)
        self.wakeup.wake()

    # questions

    def _continue_waiting(self) -> float:
        """Continue the jobs that have an answer or have expired. Returns the seconds until the next one expires."""
        now, due = time.time(), POLL_INTERVAL
        try:
            for job in self.jobs():
                if job.is_waiting and (job.changed or now >= job.waits_until):
                    self._continue(job, now)
                if job.is_waiting:
                    due = min(due, max(MIN_WAIT, job.waits_until - now))
        except RetryAbandoned:
            return 0.0
        return due

    def _continue(self, job: Job, now: float) -> None:
        match job.look(now):
            case "ended":
                job.emit("dropped")
                job.close()
                self._discard(job)
            case "answered" if self._free:
                job.resume()
                self._start(job)
            case "answered":
                job.changed = True
            case "expired":
                job.expire()
                self._start(job)

    # recovery

    def _recover(self) -> None:
        """Recover the jobs that dead workers of this daemon left in the journal."""
        for entry in self._journal.abandoned():
            try:
                self._recover_job(self._make_job(entry, self.options, self.client, self._reporter))
            except RetryAbandoned:
                entry.leave()

    def _recover_job(self, job: Job) -> None:
        """Report a finished job; terminate a running one, and fail or rerun it; release one that was not accepted."""
        phase = job.entry.phase
        ran = phase in ("starting", "started")
        job.emit("recovered", phase=phase, processes=job.terminate_leftovers() if ran else 0)
        state = self.client.state(job.work_id, job.channel)
        if phase in ("finished", "reported"):
            self._resume(job)
        elif state is None or state in TERMINAL:
            job.emit("dropped")
            job.close()
        elif phase == "waiting" and self._may_run(job.entry, ran=False):
            self._register_job(job)
        elif phase == "taken" and state == "submitted":
            self.client.release(job.seq, job.lease)
            job.entry.remove()
        else:
            if not self._may_run(job.entry, ran):
                job.fail(RESTARTED, restarted=True)
            job.is_waiting = False
            self._resume(job)

    def _may_run(self, entry: JournalEntry, ran: bool) -> bool:
        """Whether a job may run here: only with the same command, and a second time only with `--rerun`."""
        return entry.records[0]["command"] == list(self.options.command) and (not ran or self.options.rerun)

    def _resume(self, job: Job) -> None:
        self._register_job(job)
        self._start(job)

    # shutdown

    def _stop_retrying(self) -> bool:
        """Whether to stop retrying: in the main thread once stopping, in jobs after the deadline for reports."""
        here = threading.current_thread() is threading.main_thread()
        return (here and self._stopping) or time.monotonic() >= self._close_at

    def _drain(self) -> None:
        """Wait for all jobs; once stopping, for the running ones, at most `drain` seconds or until a second signal. Then stop them.

        When stopping, jobs that wait for an answer stay in the journal.
        """
        drain_until = float("inf")
        while jobs := [job for job in self.jobs() if not (self._stopping and job.is_waiting)]:
            if not self._stopping:
                self._continue_waiting()
            now = time.monotonic()
            if self._stopping and drain_until == float("inf"):
                self._reporter.emit("stopping", running=len(jobs))
                drain_until = now + self.options.drain
                self._close_at = drain_until + self.options.grace + FINAL_REPORT_TIME
            if len(self.wakeup.signals) > 1 and drain_until > now:
                drain_until = now
                self._close_at = now + self.options.grace + FINAL_REPORT_TIME
            if now >= drain_until:
                for job in jobs:
                    job.stop("stopped")
            self.wakeup.wait(min(RETRY_INTERVAL, max(0.05, drain_until - now)))

    def _exit_code(self) -> int:
        if self._reporter.lost:
            raise BrokenPipeError
        if self._unreported:
            raise Unreachable(
                f"{self._unreported} result{'s' * (self._unreported > 1)} could not be reported",
                "the journal keeps them: start the worker again when the daemon is back",
            )
        if self.wakeup.signals:
            return INTERRUPTED if self.wakeup.signals[0] == signal.SIGINT else YES
        return YES if self._all_completed else NO
