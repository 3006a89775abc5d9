"""`aghctl bridge`: an agent that uses another format, on standard input and output or as a command for each work."""

from __future__ import annotations

from types import FrameType

from aghbus.cli.app.arguments import lifetime
from aghbus.cli.app.completers import works
from aghbus.cli.app.errors import INTERRUPTED, NO, YES
from aghbus.cli.app.options import CHANNEL
from aghbus.cli.commands.serve import RUNNING, open_journal, plan_of, traced
from aghbus.cli.context import Context
from aghbus.cli.ids import whole_work
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.cli.bridge.pending import UnansweredWorks
    from aghbus.cli.bridge.schedule import Schedule
    from aghbus.cli.bridge.submit import LineSubmitter
    from aghbus.cli.worker.options import CommandOptions

FORMATS = ("sentient", "humaninloop", "agentos", "sacp")
SUBCOMMANDS = {
    "log": ("sentient log", "agentos log", "sacp log"),
    "prompt": ("sacp prompt",),
    "apply": ("humaninloop apply",),
}
"""Commands below `bridge`, by their last word: `aghctl bridge humaninloop log` is a wrong one of these, and no COMMAND."""
EVERY = Argument(
    "--every",
    metavar="TIME",
    type=lifetime,
    help="also run the COMMAND on this schedule, with the log of the chains that ended since: sentient's memory agent",
)
SERVES = Argument(
    "--capability",
    metavar="ID",
    action="append",
    help="capability of the daemon to serve; works that ask for another one are left or refused (default: take all)",
)
_LINES_ONLY = ("target", "work", "channel", "meta", "send_only")


class _Stopped(Exception):
    """A signal asks this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def run(context: Context, values: dict[str, Any]) -> int:
    """Bridge lines of standard input or, with a COMMAND, works, until a signal."""
    misplaced = [option.dest for option in (EVERY, SERVES, *RUNNING) if values[option.dest] != option.default]
    if values["command"]:
        misplaced = [name for name in _LINES_ONLY if values[name]]
    if misplaced:
        flag = "--" + misplaced[0].replace("_", "-")
        raise UsageError(f"{flag} goes {'without' if values['command'] else 'with'} a COMMAND only")
    if values["every"] is not None and values["format"] != "sentient":
        raise UsageError("--every is for the memory agent of sentient only")
    return _works(context, values) if values["command"] else _lines(context, values)


def _works(context: Context, values: dict[str, Any]) -> int:
    """Run the command for each work, and bridge its output back."""
    from functools import partial

    from aghbus.cli.bridge.job import BridgeJob
    from aghbus.cli.bridge.messages import ForeignMessages
    from aghbus.cli.worker.runner import CommandRunner

    try:
        without_work = values["without_work"] or ("run" if values["format"] == "agentos" else None)
        plan = plan_of({**values, "artifact": (), "without_work": without_work})
    except UsageError as error:
        word = values["command"][0]
        raise (_no_such_subcommand(values["format"], word) if word in SUBCOMMANDS else error) from None
    status = context.api.get("/v1/status")
    plan = traced(plan, str(status["peer_id"]))
    journal = open_journal(str(status["name"]), context, plan, f"bridge-{values['format']}")
    kinds = partial(BridgeJob, format=values["format"]), partial(ForeignMessages, format=values["format"])
    requests = context.command("requests")
    runner = CommandRunner(plan, context.api.endpoint, context.timeout, journal, context.output, requests, *kinds)
    if values["every"] is None:
        return runner.run()
    schedule = _schedule(context, plan, values["every"], str(status["name"]))
    schedule.start(int(status["store"]["last_seq"]))
    try:
        return runner.run()
    finally:
        schedule.close()


def _schedule(context: Context, plan: CommandOptions, every: float, name: str) -> Schedule:
    """The scheduled runs of the command, with their state next to the journal of the works. Raises UsageError."""
    from aghbus.cli.bridge.schedule import Schedule
    from aghbus.cli.worker.reporter import Reporter
    from aghbus.client.work.folders import open_folder

    folder = open_folder(name, context.env, "schedule-sentient")
    return Schedule(every, plan, context.api, folder, Reporter(context.output, lambda: None))


def _complete_command(prefix: str, parsed_args: Any, **_: object) -> list[str]:
    """Completions of the word after the format: the subcommands of the format, and files."""
    from argcomplete.completers import FilesCompleter

    own = [name for name, formats in SUBCOMMANDS.items() if f"{parsed_args.format} {name}" in formats]
    return [*own, *FilesCompleter()(prefix)]


def _no_such_subcommand(format: str, word: str) -> UsageError:
    """The error for a COMMAND that cannot be run, and is a subcommand of other formats only."""
    has = ", ".join(f"`bridge {one}`" for one in SUBCOMMANDS[word])
    mine = " and ".join(
        f"`bridge {format} {name}`" for name, formats in SUBCOMMANDS.items() if f"{format} {name}" in formats
    )
    return UsageError(
        f"there is no command `bridge {format} {word}`: {has} {'is one' if len(SUBCOMMANDS[word]) == 1 else 'are'}",
        f"of {format} there is {mine}; a COMMAND goes after --",
    )


def _lines(context: Context, values: dict[str, Any]) -> int:
    """Submit lines of standard input, and print messages for our agent."""
    import signal

    from aghbus.cli.bridge.pending import UnansweredWorks
    from aghbus.cli.bridge.submit import LineSubmitter

    common = {"target": values["target"], "work_id": values["work"], "channel": values["channel"]}
    printed = UnansweredWorks(values["format"])
    inward = LineSubmitter(context.api, values["format"], common, context.output, printed, meta=values["meta"])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    stopped = 0
    try:
        if values["send_only"]:
            _send(context, inward)
        else:
            _both_ways(context, inward, printed, values)
    except _Stopped as stop:
        stopped = stop.number
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # this process is ending already
    if inward.refused:
        return NO
    return INTERRUPTED if stopped == signal.SIGINT else YES


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped(number)


def _send(context: Context, inward: LineSubmitter) -> None:
    """Only submit; print each answer of the daemon as a line."""
    from aghbus.cli.bridge.submit import read_lines

    def on_sent(number: int, answer: dict[str, Any]) -> None:
        context.output.event(answer, lambda made: f"line {number}: {_sent(made)}")

    inward.run(read_lines(0), on_sent)


def _sent(answer: dict[str, Any]) -> str:
    from aghbus.cli.app.message_text import sent_line

    again = "was submitted before: " if answer["repeated"] else ""
    return again + (", ".join(map(sent_line, answer["sent"])) or "nothing to send")


def _both_ways(context: Context, inward: LineSubmitter, printed: UnansweredWorks, values: dict[str, Any]) -> None:
    """Submit lines in a thread, and print messages here, where signals arrive. The end of the input
    does not end the output."""
    import signal
    import threading

    from aghbus.cli.bridge.deliver import print_deliveries
    from aghbus.cli.bridge.submit import read_lines
    from aghbus.cli.commands.work_watch import lost_note

    failures: list[Exception] = []

    def hand_over() -> None:
        try:
            inward.run(read_lines(0), lambda number, answer: None)
        except Exception as error:
            failures.append(error)
            signal.pthread_kill(main, signal.SIGTERM)

    api, main = context.api, threading.get_ident()
    try:
        printed.recall(api)
        threading.Thread(target=hand_over, name="lines", daemon=True).start()
        print_deliveries(api, values["format"], context.output, lost_note(context), printed, meta=values["meta"])
    except _Stopped:
        if failures:
            raise failures[0] from None
        raise


def _format(text: str) -> str:
    if text == "synadia":
        raise UsageError("bridge synadia: which way?", "aghctl bridge synadia serve, or aghctl bridge synadia join")
    return text


COMMANDS = {
    "bridge": Command(
        run,
        description=(
            "Connect an agent that uses another format to the bus. Without a COMMAND: each line of standard input is a\n"
            "message of our agent, each line of standard output one for it, as JSON; findings go to standard error. With a\n"
            "COMMAND, which runs as in `aghctl serve`: it gets the message of its work on standard input and prints its answer.\n"
            "`bridge sentient log`, `bridge agentos log`, `bridge sacp log`, `bridge sacp prompt`, `bridge humaninloop apply`,\n"
            "`bridge synadia serve` and `bridge synadia join` are commands with help of their own. See docs/adapters/."
        ),
        examples=[
            "aghctl --name planner bridge sentient < from-agent.jsonl > to-agent.jsonl",
            "aghctl bridge humaninloop --target specifier --send-only < input.jsonl",
            "aghctl bridge sacp --capability text.review -- ./ask-the-model",
            "aghctl --name memory bridge sentient --every 1h -- ./distill",
        ],
        arguments=[
            Argument("format", type=_format, choices=FORMATS, help="format of the agent"),
            Argument("command", nargs="*", completer=_complete_command, help="command to run for each work, after --"),
            Argument("--target", metavar="PEER", help="receiver of messages that name no peer"),
            Argument(
                "--work", metavar="ID", completer=works, resolve=whole_work, help="work of messages that name none"
            ),
            CHANNEL,
            Argument(
                "--meta",
                action="store_true",
                help="lines are objects with `message` or `text`, and optionally `target`, `work_id`, `key`",
            ),
            Argument("--send-only", action="store_true", help="submit standard input, print the messages, exit"),
            EVERY,
            SERVES,
            *RUNNING,
        ],
        trailing="command",
    )
}
