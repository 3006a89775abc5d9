"""Runs the command of a sentient memory agent on a schedule: `aghctl bridge sentient --every TIME -- COMMAND`.

The command gets one message with the log entries of the chains that ended since the last run. It runs beside the works, at
most once at a time. The time and the position of the last run are in a file, so that a restart neither repeats nor skips one.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from pathlib import Path
from typing import Any

from aghbus.cli.bridge.deliver import post_with_retry
from aghbus.cli.worker import input as worker_input
from aghbus.cli.worker import process_group as worker_group
from aghbus.cli.worker.options import CommandOptions
from aghbus.cli.worker.process import Process
from aghbus.cli.worker.reporter import Reporter
from aghbus.cli.worker.result import outcome_of
from aghbus.client.api import Api
from aghbus.client.errors import ClientError, RefusedByDaemon
from aghbus.client.http import quote
from aghbus.host.files import sync_folder
from aghbus.protocol.formats.attachments import MAX_MESSAGE_BYTES
from aghbus.protocol.formats.sentient.log import MEMORY_INTENT, SentientLogEntry, by_day, entries_in
from aghbus.protocol.formats.sentient.native import new_message

AGENT = "schedule"
"""The agent in the message of a scheduled run."""
PAGE = 20
"""Messages per request while entries are collected."""
MAX_TEXT_BYTES = 1_048_576
"""Bytes of entries in one run; the rest comes with the next one."""


class Schedule:
    """The scheduled runs of one memory agent, in a thread between `start` and `close`."""

    def __init__(self, every: float, options: CommandOptions, api: Api, folder: str, reporter: Reporter) -> None:
        """`every` is in seconds. `folder` has the state and the input of the command."""
        self._every = every
        self._options = options
        self._api = api
        self._reporter = reporter
        self._folder = Path(folder)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="schedule", daemon=True)
        self._process: Process | None = None
        self._lock = threading.Lock()

    def start(self, last_seq: int) -> None:
        """Start. Without the state of an earlier process, the first run is one interval from now, and has the chains that
        end after `last_seq`. Raises OSError."""
        if self._state_file.exists():
            token = self._state()["token"]
            if token:  # its command was running when an earlier process was killed
                worker_group.end(token, 0, self._options.grace)
        else:
            self._save(time.time(), last_seq)
        self._thread.start()

    def close(self) -> None:
        """End the thread. A running command has `drain` seconds to end, then it is stopped."""
        self._closed.set()
        self._thread.join(self._options.drain)
        with self._lock:
            if self._process is not None:
                self._process.stop("stopped")
        self._thread.join()

    @property
    def _state_file(self) -> Path:
        return self._folder / "state.json"

    def _run(self) -> None:
        while not self._closed.is_set():
            state = self._state()
            now = time.time()
            left = min(state["at"], now) + self._every - now  # the clock may have been set back
            if left > 0:
                self._closed.wait(left)
                continue
            try:
                self._save(now, self._run_once(state["seq"]))
            except (ClientError, OSError, ValueError) as error:
                self._emit("problem", message=str(error))
                self._save(now, state["seq"])

    def _run_once(self, seq: int) -> int:
        """Run the command if chains ended after `seq`, and submit its answer. Returns the sequence for the next run: `seq`
        when the command failed."""
        entries, calls, reached = self._collect(seq)
        if not entries:
            self._complete(calls)
            return reached
        token = f"schedule-{secrets.token_hex(12)}"
        self._save(self._state()["at"], seq, token)
        message = new_message(token, int(time.time()), AGENT, token, token)
        message["output"] = {"content": by_day(entries), "content_type": MEMORY_INTENT}
        answer = self._execute(message, token)
        if answer is None:
            return seq
        if answer.strip():
            text = _as_first(answer, message)
            response = post_with_retry(self._api, "/v1/bridge/sentient", {"text": text})
            self._emit("reported", verb="complete", findings=[one["rule"] for one in response["findings"]])
        self._complete(calls)
        return reached

    def _complete(self, calls: list[dict[str, Any]]) -> None:
        """End the works of `calls` when the command runs on the schedule only: nobody else does."""
        if MEMORY_INTENT in self._options.accept.get("intent", (MEMORY_INTENT,)):
            return
        for call in calls:
            ending = {"channel": call["channel"], "message": "handled by a scheduled run"}
            with contextlib.suppress(
                RefusedByDaemon
            ):  # ended meanwhile, for example by an earlier process that was killed
                self._api.post(f"/v1/works/{quote(call['work_id'])}/complete", ending)

    def _collect(self, seq: int) -> tuple[list[SentientLogEntry], list[dict[str, Any]], int]:
        """The entries of the calls that arrived after `seq`, each once, these calls, and the sequence of the last message read."""
        found: dict[SentientLogEntry, None] = {}
        calls: list[dict[str, Any]] = []
        size = 0
        while True:
            query = [("direction", "in"), ("kind", "say"), ("since", seq), ("limit", PAGE)]
            messages = self._api.get("/v1/messages", query)["messages"]
            for message in messages:
                entries = _entries(message["envelope"])
                size += sum(len(entry.text) for entry in entries if entry not in found)
                if size > MAX_TEXT_BYTES and found:
                    return list(found), calls, seq
                found.update(dict.fromkeys(entries))
                calls += [message] if _is_call(message) else []
                seq = message["seq"]
            if len(messages) < PAGE:
                return list(found), calls, seq

    def _execute(self, message: dict[str, Any], token: str) -> str | None:
        """What the command prints; None when it failed."""
        path, options = self._folder / "input.json", self._options
        worker_input.write(path, json.dumps(message).encode() + b"\n")
        env = {
            **worker_input.inherited(os.environ, options.pass_env),
            "AGH_INPUT": str(path),
            worker_group.JOB_VARIABLE: token,
        }
        with path.open("rb") as stdin, self._lock:
            if self._closed.is_set():
                return None
            command = options.command_line(str(path), {})
            process = Process(
                command,
                cwd=options.cwd,
                env=env,
                stdin=stdin,
                token=token,
                keep=MAX_MESSAGE_BYTES,
                supervised=options.supervised,
            )
            self._process = process
        self._emit("started", pid=process.pid)
        ended = process.run(options.time_limit, options.grace)
        with self._lock:
            self._process = None
        outcome = outcome_of(process, ended, options.time_limit)
        self._emit("finished", verb=outcome.verb, message=outcome.message)
        printed = process.stdout.complete()
        return None if outcome.verb != "complete" or printed is None else printed.decode("utf-8", "replace")

    def _state(self) -> dict[str, Any]:
        """When the last run began (`at`, Unix seconds), the sequence that it read up to, and the token of its processes."""
        state: dict[str, Any] = json.loads(self._state_file.read_text())
        return state

    def _save(self, at: float, seq: int, token: str = "") -> None:
        """Write the state, so that a crash leaves the earlier or the new one. Raises OSError."""
        new = self._folder / "state.new"
        with new.open("w") as file:
            json.dump({"at": at, "seq": seq, "token": token}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._state_file)
        sync_folder(self._folder)

    def _emit(self, event: str, **more: Any) -> None:
        self._reporter.emit(event, scheduled=True, **more)


def _is_call(message: dict[str, Any]) -> bool:
    """Whether a message of the API opened a work that calls the memory agent."""
    opened = message["work_id"] is not None and message["outcome"] == "opened"
    return opened and (message["envelope"].get("body") or {}).get("intent") == MEMORY_INTENT


def _entries(envelope: dict[str, Any]) -> tuple[SentientLogEntry, ...]:
    """The log entries in a call of the memory agent; none in another envelope."""
    if (envelope.get("body") or {}).get("intent") != MEMORY_INTENT:
        return ()
    return entries_in(envelope.get("ext") or {})


def _as_first(answer: str, asked: dict[str, Any]) -> str:
    """An answer to the message of a scheduled run as the first message of its chain, since that message was never sent."""
    try:
        value = json.loads(answer)
        if value["metadata"]["parent_message_id"] != asked["message_id"]:
            return answer
        value["metadata"] = {**asked["metadata"]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return answer
    return json.dumps(value)
