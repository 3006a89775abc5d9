"""`aghctl work run`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aghbus.cli.app.arguments import seconds
from aghbus.cli.app.errors import Interrupted, exit_code_of_work
from aghbus.cli.app.message_text import TERMINAL, event_line, reason_line, sent_line
from aghbus.cli.app.options import SENDING
from aghbus.cli.app.recipients import note_absent
from aghbus.cli.app.text import painted, readable, safe, shell
from aghbus.cli.commands.work_open import OPENING, open_work
from aghbus.cli.commands.work_watch import ReasonNotes, lost_note, was_rejected
from aghbus.cli.context import Context
from aghbus.client.events import follow
from aghbus.client.http import quote
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

_SETTLED = (*TERMINAL, "needs_input")
"""States in which the command returns."""


class _Expired(BaseException):
    """`--wait` has passed. Not an Exception: nothing on the way handles it."""


def run(context: Context, values: dict[str, Any]) -> int:
    """Open the work, wait until it has ended or asks something, and print the result; the exit code tells its state."""
    return run_to_end(context, open_work(context, {**values, "reactions": "none"}), values["wait"])


def run_to_end(context: Context, sent: dict[str, Any], wait: float | None) -> int:
    """The same for a work that was opened by `sent` (`SendResponse`), for `wait` seconds at most; None: without limit."""
    try:
        context.output.note(sent_line(sent))
        note_absent(context.api, context.output, sent)
        with _bounded(wait):
            _follow(context, sent)
    except KeyboardInterrupt:
        raise _interrupted(context, sent["work_id"]) from None
    detail = _work(context, sent)
    answer = _outcome(detail)
    context.output.answer(answer, _human)
    context.output.note(_next_step(context, answer))
    return exit_code_of_work(answer["state"], rejected=was_rejected(detail["history"]))


def _interrupted(context: Context, work_id: str) -> Interrupted:
    watch, cancel = (context.command(f"work {verb} {shell(work_id)}") for verb in ("watch", "cancel"))
    return Interrupted(f"interrupted: {work_id} goes on", f"`{watch}` follows it, `{cancel}` cancels it")


@contextmanager
def _bounded(wait: float | None) -> Iterator[None]:
    """Leave the block after `wait` seconds; None: never."""
    import signal

    def expire(_number: int, _frame: object) -> None:
        raise _Expired

    if wait is None:
        yield
        return
    signal.signal(signal.SIGALRM, expire)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(wait, 0.001))
        yield
    except _Expired:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _follow(context: Context, sent: dict[str, Any]) -> None:
    """Print what happens as notes, until the work has ended or asks something, at whichever peer has it."""
    work_id, since = sent["work_id"], sent["seq"]
    notes = ReasonNotes(context, sent["work_id"], sent["channel"])
    while work_id is not None:
        query = [("work", work_id), ("channel", sent["channel"])]
        for event in follow(context.api, query, since, lost_note(context), on_idle=notes.idle):
            context.output.note(event_line(event))
            since = event["seq"]
            if event["type"] == "gap" or (event.get("work") or {}).get("after") in _SETTLED:
                now = _work(context, sent)["work"]
                if now["state"] in _SETTLED or now["work_id"] != work_id:
                    work_id = None if now["work_id"] == work_id else now["work_id"]
                    break


def _work(context: Context, sent: dict[str, Any]) -> dict[str, Any]:
    return context.api.get(f"/v1/works/{quote(sent['work_id'])}", [("channel", sent["channel"])])


def _outcome(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer of this command: the work as it is now, with the reason and artifacts of its last step."""
    work, last = answer["work"], answer["history"][-1]
    return {
        "work_id": work["work_id"],
        "to": work["target"],
        "state": work["state"],
        "message": work["message"],
        "reason": last["reason"],
        "result": work["result"],
        "artifacts": last["artifacts"] or [],
        "why": answer["why"],
    }


def _human(answer: dict[str, Any]) -> str:
    """The result member by member; the message where there is none; the artifacts."""
    lines = [safe(answer["message"])] if answer["result"] is None and answer["message"] else []
    lines += [] if answer["result"] is None else [readable(answer["result"])]
    named = [entry for entry in answer["artifacts"] if isinstance(entry, dict)]
    lines += [f"artifact:  {safe(entry.get('uri') or entry.get('name'))}" for entry in named]
    return "\n".join(lines)


def _next_step(context: Context, answer: dict[str, Any]) -> str:
    why = answer["why"]
    work, state = shell(answer["work_id"]), answer["state"]
    reason = f" ({safe(answer['reason'])})" if answer["reason"] else ""
    line = f"{safe(answer['work_id'])} {painted(state)}{reason}"
    watch = context.command(f"work watch {work}")
    if state == "needs_input":
        say = context.command(f"work say {work} TEXT")
        return f"{line}\nanswer: {say}\nthen: {watch}"
    if why is None:
        return line
    hint = f"\nhint: {safe(context.pasteable(why['hint']))}" if why["hint"] else ""
    return f"{line}: it has not ended in time\nwhy: {reason_line(why)}{hint}\nfollow it: {watch}"


COMMANDS = {
    "work run": Command(
        run,
        description=(
            "Open a work for a peer, show its progress on standard error, and print its result when it has ended. Returns\n"
            "also when the peer asks something, or when --wait has passed; the work goes on. Exits 0 when it\n"
            "completed, 1 when it failed, 6 when it asks something, 7 when it was canceled or rejected, 8 when it has not ended.\n"
            "Nothing of this work reaches our inbox."
        ),
        examples=[
            'aghctl work run --to patch-worker --text "Run the migration smoke test" --wait 10m',
            'aghctl work run --to-capability test.run --text "Check this" --artifact patch.diff -o json',
        ],
        arguments=[
            *OPENING,
            Argument(
                "--wait", metavar="TIME", type=seconds, help="how long to wait for the end (default: until it ends)"
            ),
            *SENDING,
        ],
    )
}
