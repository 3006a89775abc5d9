"""The process behind `aghctl serve`: takes works while slots are free, runs a command for each, and drains before it exits.

Everything happens in one event loop: a task per job (job.py), and those of the feed, which takes works, keeps them leased and
follows their events (aghbus.client.work). Commands run in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial

import msgspec

from aghbus.cli.app.errors import INTERRUPTED, NO, YES
from aghbus.cli.app.output import Output
from aghbus.cli.worker.job import BUSY, CommandJob, plain
from aghbus.cli.worker.messages import MessagesWithoutWork
from aghbus.cli.worker.options import CommandOptions
from aghbus.cli.worker.reporter import Reporter
from aghbus.client.core.aio import in_thread
from aghbus.client.core.core import Core
from aghbus.client.errors import ClientError, Unreachable
from aghbus.client.http import Endpoint
from aghbus.client.work.clients import AsyncClient
from aghbus.client.work.feed import LEASE, Feed
from aghbus.client.work.job import JobCore, JobState
from aghbus.client.work.journal import Journal, JournalEntry
from aghbus.protocol.api.inbox import InboxItem
from aghbus.protocol.api.messages import Event

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MAX_WAITING = 1_000
"""Works that may wait for answers; beyond that the worker is busy."""
RETURN_PAUSE = 15.0
"""Seconds for which a work is left that cannot be started: the journal cannot be written, or another worker has it there."""
FINAL_TAKE_TIME = 1.0
"""Seconds for a lease that is being taken when a signal arrives."""
FINAL_REPORT_TIME = 5.0
"""Seconds for reporting to an unreachable daemon after all commands have been terminated."""


class CommandRunner:
    """One `aghctl serve`, or `aghctl bridge FORMAT -- COMMAND`. `run` returns the exit code."""

    def __init__(
        self,
        options: CommandOptions,
        endpoint: Endpoint,
        timeout: float,
        journal: Journal,
        output: Output,
        requests: str,
        make_job: Callable[..., CommandJob] = CommandJob,
        make_messages: Callable[..., MessagesWithoutWork] = MessagesWithoutWork,
    ) -> None:
        """`timeout` in seconds bounds every step of a request. `requests` is the command that lists who waits for admission.
        `make_job` creates a job from its leased work, a journal entry, the options, the client and the reporter;
        `make_messages` what deals with messages without a work."""
        self.options = options
        self._make_job, self._requests = make_job, requests
        self._client = AsyncClient(endpoint, timeout=timeout)
        self._client.core.patience = math.inf  # jobs wait for a daemon that is away
        core = Core(self._client.core.runtime, timeout)
        accept, needs_name = options.fits if options.accept else None, options.needs_capability
        self._feed = Feed(
            core,
            options.capabilities,
            accept,
            others=options.others,
            needs_name=needs_name,
            takes=options.concurrency,
        )
        self._feed.leave, self._feed.on_waiting, self._feed.on_other = self._leave, self._note_waiting, self._note_other
        self._feed.on_refused = self._note_refused
        self._journal = journal
        self._reporter = Reporter(output, self._stop)
        self._slots = _Slots(options.concurrency, self._feed.wake)
        self._jobs: dict[asyncio.Task[None], CommandJob] = {}
        self._changed = asyncio.Event()
        self._messages = make_messages(options, self._client, self._reporter, journal, self._changed.set)
        self._signals: list[signal.Signals] = []
        self._taken = self._accepted = 0
        self._all_completed = True
        self._unreported = 0

    def run(self) -> int:
        """Recover the jobs of dead workers, then serve until a signal or the last job. Raises ClientError."""
        asyncio.run(self._run())
        if self.options.tracing is not None:
            self.options.tracing.close()
        return self._exit_code()

    async def _run(self) -> None:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        await self._feed.open()
        try:
            for entry in self._journal.abandoned():
                if entry.records[0]["item"]["message"]["work_id"] is None:
                    await in_thread(partial(self._messages.recover, entry))
                    continue
                core = JobCore(self._client.core, _recorded(entry))
                self._feed.adopt(core)
                job = self._job(core, entry)
                self._start(job, self._recover(job))
            self._report_ready()
            messages = asyncio.create_task(self._messages.run())
            try:
                await self._serve()
            finally:
                messages.cancel()
        finally:
            await self._feed.close()
            self._client.close()

    def _report_ready(self) -> None:
        options, sandbox = self.options, self.options.sandbox
        if sandbox is not None and sandbox.warning:
            self._reporter.emit("problem", message=sandbox.warning)
        more = {} if sandbox is None else {"sandbox": sandbox.name}
        serves = {"capabilities": list(options.capabilities), "command": options.command[0]}
        self._reporter.emit("ready", **serves, concurrency=options.concurrency, **more)

    async def _serve(self) -> None:
        taking = asyncio.create_task(self._take_works())
        taking.add_done_callback(lambda _: self._changed.set())
        await self._until(lambda: self._stopping or taking.done())
        await asyncio.wait({taking}, timeout=FINAL_TAKE_TIME)
        if not taking.done():
            taking.cancel()
        elif (error := taking.exception()) is not None:
            raise error
        self._messages.stop("")
        await self._until(lambda: self._stopping or not (self._jobs or self._messages.is_running))
        if self._stopping:
            await self._drain()

    @property
    def _stopping(self) -> bool:
        return bool(self._signals) or self._reporter.lost

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals.append(number)
        self._stop()

    def _stop(self) -> None:
        self._feed.stop()
        self._changed.set()

    async def _until(self, done: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait until `done` is true after a signal or the end of a job, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not done():
                    self._changed.clear()
                    await self._changed.wait()

    # taking works

    def _leave(self) -> int:
        """How many of the works in the inbox are to wait there; those beyond are taken, or rejected when no slot is free."""
        if self.options.max_jobs is not None and self._taken >= self.options.max_jobs:
            return sys.maxsize
        return self.options.queue if self._busy else 0

    def _note_waiting(self, item: InboxItem) -> None:
        told = {"from": item.message.sender, "message": f"its peer is not admitted: {self._requests}"}
        self._reporter.emit("waiting", work_id=item.message.work_id, **told)

    def _note_refused(self, item: InboxItem, why: str) -> None:
        told = {"from": item.message.sender, "reason": "unsupported_profile", "message": why}
        self._reporter.emit("rejected", work_id=item.message.work_id, **told)

    def _note_other(self, event: Event) -> None:
        """An event outside of the works of the jobs: perhaps the answer to a query that a job sent to another peer."""
        if event.work is None:
            self._messages.wake()
        for job in list(self._jobs.values()):
            job.note_other(event)

    @property
    def _busy(self) -> bool:
        return self._slots.locked() or len(self._jobs) >= self.options.concurrency + MAX_WAITING

    async def _take_works(self) -> None:
        while (leased := await self._feed.lease()) is not None:
            core = JobCore(self._client.core, leased.state)
            item = leased.state.item
            try:
                found = self._journal.left(item.seq, item.message.id)
                command = list(self.options.command)
                entry = found or self._journal.begin(seq=item.seq, command=command, item=plain(item))
            except OSError as error:  # without a journal nothing is started
                self._reporter.emit("problem", work_id=core.work_id, message=f"the journal: {error.strerror}")
                with contextlib.suppress(ClientError):
                    await leased.release(delay=RETURN_PAUSE, error=error.strerror)
                continue
            job = self._job(core, entry)
            if found is not None:
                self._start(job, self._recover(job))
                continue
            job.emit("taken")
            if self._busy:
                self._start(job, self._reject(job))
            else:
                self._taken += 1
                await self._slots.acquire()
                self._start(job, self._accept(job))

    def _job(self, core: JobCore, entry: JournalEntry) -> CommandJob:
        job = self._make_job(core, entry, self.options, self._client, self._reporter)
        job.on_waiting = self._changed.set
        return job

    async def _accept(self, job: CommandJob) -> None:
        """Run a work that was taken, if it can be accepted; a slot is reserved for it."""
        try:
            job.counts = await job.core.accept()
        finally:
            if not job.counts:
                self._taken -= 1
                self._slots.release()
        if not job.counts:
            job.drop()
            return
        job.emit("accepted")
        self._accepted += 1
        if self._accepted == self.options.max_jobs:
            self._feed.stop()
        await job.run(self._slots, reserved=True)

    async def _reject(self, job: CommandJob) -> None:
        if await job.core.reject(BUSY):
            job.emit("rejected", reason="busy", message=BUSY)
            job.entry.remove()
        else:
            job.drop()

    # running

    def _start(self, job: CommandJob, steps: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(self._carry_out(job, steps))
        self._jobs[task] = job
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        del self._jobs[task]
        self._changed.set()
        self._feed.wake()

    async def _carry_out(self, job: CommandJob, steps: Coroutine[None, None, None]) -> None:
        """A whole job. What prevents it from being reported concerns only this job, which stays in the journal for the next
        worker that gets its lease."""
        try:
            await steps
        except asyncio.CancelledError:
            if not job.is_waiting:
                self._leave_in_journal(job, "unreported")
        except Exception as error:
            self._leave_in_journal(job, "problem", message=f"{type(error).__name__}: {error}")
        finally:
            steps.close()
            job.entry.leave()
            if not job.core.state.ended:
                job.core.state.end(returned=True)
        if job.counts and job.verb != "complete":
            self._all_completed = False

    def _leave_in_journal(self, job: CommandJob, event: str, **more: str) -> None:
        job.emit(event, **more)
        self._unreported += 1

    async def _recover(self, job: CommandJob) -> None:
        """Carry on with the job of a dead worker: report what has finished; terminate what runs, and fail or rerun it; return
        what was not started to the inbox."""
        phase, options = job.entry.phase, self.options
        ran = phase in ("starting", "started")
        if phase != "taken":  # which would be a further attempt
            await job.core.renew(LEASE)
        job.emit("recovered", phase=phase, processes=await in_thread(job.terminate_leftovers) if ran else 0)
        if phase != "finished":
            if await job.core.has_ended():
                await job.core.settle()
                job.drop()
                return
            if phase == "taken":
                job.entry.remove()
                await job.core.release(delay=0, error="the worker was restarted before the command was started")
                return
            job.check_lease()
            if job.entry.records[0]["command"] != list(options.command) or (ran and not options.rerun):
                job.fail_restarted()
            elif phase == "waiting":
                await job.core.acknowledge()  # unless the dead worker did
        await job.run(self._slots, reserved=False)

    # shutdown

    async def _drain(self) -> None:
        """Wait for the running commands, at most `drain` seconds or until a second signal, then stop them. Jobs that wait for an
        answer, and those that cannot be reported, stay in the journal."""
        if running := self._running():
            self._reporter.emit("stopping", running=len(running))
        await self._until(lambda: not self._running() or len(self._signals) > 1, self.options.drain)
        for one in self._running():
            one.stop("stopped")
        await self._until(lambda: not self._running(), self.options.grace + FINAL_REPORT_TIME)
        for task in self._jobs:
            task.cancel()
        await self._until(lambda: not self._jobs)

    def _running(self) -> list[CommandJob | MessagesWithoutWork]:
        jobs = [job for job in self._jobs.values() if not job.is_waiting]
        return [*jobs, self._messages] if self._messages.is_running else [*jobs]

    def _exit_code(self) -> int:
        if self._reporter.lost:
            raise BrokenPipeError
        if self._unreported:
            raise Unreachable(
                f"{self._unreported} result{'s' * (self._unreported > 1)} could not be reported",
                "the journal keeps them: start the worker again when the daemon is back",
            )
        if self._signals:
            return INTERRUPTED if self._signals[0] == signal.SIGINT else YES
        return YES if self._all_completed else NO


class _Slots(asyncio.Semaphore):
    """The commands that may run at a time; `on_free` is called when one more may."""

    def __init__(self, count: int, on_free: Callable[[], None]) -> None:
        super().__init__(count)
        self._on_free = on_free

    def release(self) -> None:
        """Let another command run."""
        super().release()
        self._on_free()


def _recorded(entry: JournalEntry) -> JobState:
    """The work of a journal entry. It needs no lease once the command has finished or asked."""
    item = msgspec.json.decode(msgspec.json.encode(entry.records[0]["item"]), type=InboxItem)
    leased = entry.phase in ("taken", "starting", "started") and entry.last("waiting") is None
    return JobState(item, item.lease if leased else None)
