"""The worker behind `aghctl serve`: takes works as slots are free, hands each to a thread, and sees them off when it stops.

Threads: this one takes, accepts and rejects; one per job runs and reports (worker_job.py); two watch (worker_watch.py).
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
from aghbus.cli.worker.daemon_client import LEASE_SPARE, Desk, GaveUp, is_passing, opens
from aghbus.cli.worker.job import BUSY, RESTARTED, Job
from aghbus.cli.worker.journal import Entry, Journal
from aghbus.cli.worker.options import Plan
from aghbus.cli.worker.reporter import Reporter
from aghbus.cli.worker.wakeup import Bell
from aghbus.cli.worker.watch import EventWatch, Pulse
from aghbus.client.api import Api
from aghbus.client.errors import ClientError, RefusedByDaemon, Unreachable

SERVED = ("complete", "asked")
"""Verbs of jobs that went well: what a bridged command asks is an answer, too."""
LOOK_AGAIN = 5.0
"""Seconds after which works are looked for though nothing woke us: a message that another consumer gave back makes no event."""
TRY_AGAIN = 1.0
"""Seconds between two attempts while the daemon is away."""
HELD_ELSEWHERE = 15.0
"""Seconds for which a work is left alone whose message another consumer holds."""
LAST_WORDS = 5.0
"""Seconds to report to a daemon that is away, after everything has been ended."""


class Worker:
    """One `aghctl serve`, or `aghctl bridge FORMAT -- COMMAND`. `run` returns the exit code."""

    def __init__(
        self, plan: Plan, api: Api, journal: Journal, output: Output, make_job: Callable[..., Job] = Job
    ) -> None:
        """`make_job` makes a job of a journal entry, the plan, the desk and the reporter."""
        self.plan = plan
        self._make_job = make_job
        self.bell = Bell()
        self.desk = Desk(api, self._is_over)
        self._api = api
        self._journal = journal
        self._reporter = Reporter(output, self.bell.ring)
        self._jobs: dict[tuple[str, str], Job] = {}
        self._lock = threading.Lock()
        self._close_at = float("inf")
        self._taken = 0
        self._all_completed = True
        self._undelivered = 0
        self._left_alone: dict[tuple[str, str], float] = {}

    def jobs(self) -> list[Job]:
        """The jobs in our hands."""
        with self._lock:
            return list(self._jobs.values())

    def job(self, channel: str, work_id: str) -> Job | None:
        """Our job for that work."""
        with self._lock:
            return self._jobs.get((channel, work_id))

    def run(self, since: int) -> int:
        """Take up what a dead worker left, then serve until a signal or the last job; events count from sequence `since`."""
        with self.bell.listening():
            EventWatch(self, self._api, since).start()
            Pulse(self, self.plan.heartbeat).start()
            self._recover()
            self._reporter.tell("ready", capabilities=list(self.plan.capabilities), concurrency=self.plan.concurrency)
            while not self._stopping and not self._enough:
                self.bell.wait(self._look())
            self._see_off()
        return self._exit_code()

    @property
    def _stopping(self) -> bool:
        return bool(self.bell.signals) or self._reporter.lost

    @property
    def _enough(self) -> bool:
        return self.plan.max_jobs is not None and self._taken >= self.plan.max_jobs

    # taking work

    def _look(self) -> float:
        """Take what there is; how long to wait until the next look."""
        try:
            works = self.desk.submitted()
            self._forget_others(works)
            for work in works:
                if self._stopping or self._enough or (self.plan.queue_when_busy and not self._free):
                    break
                self._consider(work)
        except GaveUp:
            return 0.0
        except ClientError as error:
            if not is_passing(error):
                raise
            return TRY_AGAIN
        return LOOK_AGAIN

    @property
    def _free(self) -> bool:
        return sum(job.runs for job in self.jobs()) < self.plan.concurrency

    def _forget_others(self, works: list[dict[str, Any]]) -> None:
        waiting = {(work["channel"], work["work_id"]) for work in works}
        self._left_alone = {key: until for key, until in self._left_alone.items() if key in waiting}

    def _consider(self, work: dict[str, Any]) -> None:
        """Take one work, if it fits, nobody else has it, and a slot is free; reject it when none is."""
        key = (work["channel"], work["work_id"])
        if self._left_alone.get(key, 0.0) > time.monotonic() or self.job(*key) is not None:
            return
        if self.plan.accept:
            opening = self.desk.opening(work)
            if opening is None or not self.plan.fits(opening):
                self._left_alone[key] = float("inf")
                return
        item = self.desk.take(work["work_id"], self.plan.time_limit + LEASE_SPARE)
        if item is None:
            self._left_alone[key] = time.monotonic() + HELD_ELSEWHERE
        elif item["message"]["channel"] != work["channel"] or not opens(item):
            self.desk.give_back(item["seq"], item["lease"])
            self._left_alone[key] = float("inf")  # its opening was taken for good by somebody who may yet accept it
        else:
            self._take(item)

    def _take(self, item: dict[str, Any]) -> None:
        try:
            entry = self._journal.begin(seq=item["seq"], command=list(self.plan.command), item=item)
        except OSError as error:  # without a journal nothing is started: the message goes back
            self._return(item, f"the journal cannot be written: {error.strerror}", HELD_ELSEWHERE)
            return
        job = self._make_job(entry, self.plan, self.desk, self._reporter)
        job.tell("taken")
        try:
            if self._free:
                self._begin(job)
            else:
                self._turn_down(job)
        except RefusedByDaemon as error:
            self._drop(job)
            entry.remove()
            self._return(item, f"the daemon refused: {error.message}", float("inf"))
        except BaseException:
            self._drop(job)
            entry.leave()
            raise

    def _return(self, item: dict[str, Any], why: str, pause: float) -> None:
        """Give a message back, and leave its work alone for `pause` seconds."""
        work_id, channel = item["message"]["work_id"], item["message"]["channel"]
        self._reporter.tell("problem", work_id=work_id, message=why)
        self._left_alone[(channel, work_id)] = time.monotonic() + pause
        self.desk.give_back(item["seq"], item["lease"])

    def _begin(self, job: Job) -> None:
        self._hold(job)  # before it is accepted, so that no cancellation is missed
        if job.accept():
            job.tell("accepted")
            self._taken += 1
            self._start(job, counts=True)
        else:
            job.tell("dropped")
            job.close()
            self._drop(job)

    def _turn_down(self, job: Job) -> None:
        if job.reject():
            job.tell("rejected", reason="busy", message=BUSY)
        else:
            job.tell("dropped")
        job.close()

    # running

    def _start(self, job: Job, *, counts: bool) -> None:
        threading.Thread(target=self._carry_out, args=(job, counts), name=job.entry.token, daemon=True).start()

    def _carry_out(self, job: Job, counts: bool) -> None:
        """A job's thread. Whatever goes wrong stays with this job, and in its journal for the next worker."""
        try:
            job.carry_out()
        except GaveUp:
            self._leave(job, "left")
        except Exception as error:
            self._leave(job, "problem", message=f"{type(error).__name__}: {error}")
        finally:
            if counts and job.verb not in SERVED:
                self._all_completed = False
            self._drop(job)

    def _leave(self, job: Job, event: str, **more: Any) -> None:
        job.tell(event, **more)
        self._undelivered += 1
        job.entry.leave()

    def _hold(self, job: Job) -> None:
        with self._lock:
            self._jobs[job.key] = job

    def _drop(self, job: Job) -> None:
        with self._lock:
            self._jobs.pop(job.key, None)
        self.bell.ring()

    # after a worker that died

    def _recover(self) -> None:
        """Take up the jobs that dead workers of this daemon left in the journal."""
        for entry in self._journal.abandoned():
            try:
                self._take_up(self._make_job(entry, self.plan, self.desk, self._reporter))
            except GaveUp:
                entry.leave()

    def _take_up(self, job: Job) -> None:
        """Report what is finished; end what still runs, and fail it or run it again; give back what was not accepted."""
        phase = job.entry.phase
        ran = phase in ("starting", "started")
        job.tell("recovered", phase=phase, processes=job.clean_up() if ran else 0)
        state = self.desk.state(job.work_id, job.channel)
        if phase in ("finished", "reported"):
            self._resume(job)
        elif state is None or state in TERMINAL:
            job.tell("dropped")
            job.close()
        elif phase == "taken" and state == "submitted":
            self.desk.give_back(job.seq, job.lease)
            job.entry.remove()
        else:
            if not self._may_run(job.entry, ran):
                job.fail(RESTARTED, restarted=True)
            self._resume(job)

    def _may_run(self, entry: Entry, ran: bool) -> bool:
        """Whether a job may be run here: as it was meant, and a second time only when the operator said so."""
        return entry.records[0]["command"] == list(self.plan.command) and (not ran or self.plan.rerun)

    def _resume(self, job: Job) -> None:
        self._hold(job)
        self._start(job, counts=False)

    # the end

    def _is_over(self) -> bool:
        """Whether to stop insisting: this thread at once when it is to stop, jobs at their last moment."""
        here = threading.current_thread() is threading.main_thread()
        return (here and self._stopping) or time.monotonic() >= self._close_at

    def _see_off(self) -> None:
        """Wait for what runs; once stopping, for `drain` seconds, and until a second signal, at most. Then end it."""
        drain_until = float("inf")
        while self.jobs():
            now = time.monotonic()
            if self._stopping and drain_until == float("inf"):
                self._reporter.tell("stopping", running=len(self.jobs()))
                drain_until = now + self.plan.drain
                self._close_at = drain_until + self.plan.grace + LAST_WORDS
            if len(self.bell.signals) > 1 and drain_until > now:
                drain_until = now
                self._close_at = now + self.plan.grace + LAST_WORDS
            if now >= drain_until:
                for job in self.jobs():
                    job.stop("stopped")
            self.bell.wait(min(TRY_AGAIN, max(0.05, drain_until - now)))

    def _exit_code(self) -> int:
        if self._reporter.lost:
            raise BrokenPipeError
        if self._undelivered:
            raise Unreachable(
                f"{self._undelivered} result{'s' * (self._undelivered > 1)} could not be reported",
                "the journal keeps them: start the worker again when the daemon is back",
            )
        if self.bell.signals:
            return INTERRUPTED if self.bell.signals[0] == signal.SIGINT else YES
        return YES if self._all_completed else NO
