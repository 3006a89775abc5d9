"""`aghctl serve`: run any command as a worker."""

from __future__ import annotations

import os
from contextlib import suppress

from aghbus.cli.app.arguments import lifetime, positive, seconds
from aghbus.cli.context import Context
from aghbus.client.errors import UsageError
from aghbus.client.locate import locations
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.cli.worker.confine import Sandbox
    from aghbus.cli.worker.options import CommandOptions
    from aghbus.client.work.journal import Journal

QUEUE = 100
"""Works that wait in the inbox while all slots are in use; more are rejected as busy."""
LETS_THROUGH = "a command may change mode, times and attributes of any file, and limits of any process, of its user"
"""What Landlock has no rule for, and bubblewrap stops."""
ACCEPTS = ("intent", "from", "kind", "trust")
"""Parts of an opening message that `--accept` can filter by."""
_OTHERS = ("others", "")
"""The value of `--accept` that lets in works of peers that were not admitted."""


def run(context: Context, values: dict[str, Any]) -> int:
    """Serve until a signal, or until --once or --max-jobs is reached; the exit code is then that of the jobs."""
    from aghbus.cli.worker.runner import CommandRunner

    plan, api = plan_of(values), context.api
    status = api.get("/v1/status")
    plan = traced(plan, str(status["peer_id"]))
    journal = open_journal(str(status["name"]), context, plan, "serve")
    return CommandRunner(plan, api.endpoint, api.timeout, journal, context.output, context.command("requests")).run()


def plan_of(values: dict[str, Any]) -> CommandOptions:
    """The worker's options from the command line. Raises UsageError."""
    from aghbus.cli.worker.options import CommandOptions

    _check_platform()
    if values["once"] and values["max_jobs"] is not None:
        raise UsageError("--once and --max-jobs exclude each other")
    return CommandOptions(
        command=_checked_command(values["command"], cwd := _folder(values["cwd"])),
        capabilities=tuple(values["capability"]),
        concurrency=values["concurrency"],
        time_limit=values["time_limit"],
        grace=values["grace"],
        heartbeat=values["heartbeat"],
        drain=values["drain"],
        answer_within=values["answer_within"],
        artifacts=tuple(values["artifact"]),
        cwd=cwd,
        accept=_accepts(values["accept"], allow_unverified=values["allow_unverified"]),
        others=_OTHERS in values["accept"],
        queue=0 if values["when_busy"] == "reject" else values["queue"],
        rerun=values["on_restart"] == "rerun",
        max_jobs=1 if values["once"] else values["max_jobs"],
        pass_env=frozenset(values["pass_env"]),
        limits=dict(values["limit"]),
        sandbox=_sandbox(values, cwd),
        without_work=values["without_work"] or "acknowledge",
    )


def traced(plan: CommandOptions, peer_id: str) -> CommandOptions:
    """The plan, with traces of the worker of this peer if the environment asks for them. Raises UsageError."""
    if not any(name.startswith("OTEL_EXPORTER_OTLP_") for name in os.environ):
        return plan
    from dataclasses import replace

    from aghbus.host.tracing import TracingUnavailable, tracing_of

    try:
        return replace(plan, tracing=tracing_of(os.environ, "aghctl", peer_id))
    except TracingUnavailable as error:
        raise UsageError(str(error), "or unset OTEL_EXPORTER_OTLP_ENDPOINT") from None


def open_journal(name: str, context: Context, plan: CommandOptions, kind: str) -> Journal:
    """The journal of this kind of worker for the daemon called `name`. Raises UsageError, also when the sandbox of `plan` leaves
    the state folder writable."""
    from aghbus.client.work.folders import open_folder
    from aghbus.client.work.journal import Journal

    if plan.sandbox is not None:
        root = locations(name, context.env).state_dir.removesuffix(f"/instances/{name}")
        _check_outside(root, (*plan.sandbox.read, *plan.sandbox.write))
    return Journal(open_folder(name, context.env, kind))


def _check_platform() -> None:
    if not hasattr(os, "pidfd_open") or not os.path.exists("/proc/self/environ"):  # noqa: PTH110 - pathlib is slow to load
        raise UsageError("serve needs Linux with /proc, to find and end the processes that a command started")


def _folder(path: str | None) -> str:
    folder = os.path.realpath(path or ".")
    if not os.path.isdir(folder):  # noqa: PTH112 - pathlib is slow to load
        raise UsageError(f"--cwd: {path} is not a folder")
    return folder


def _checked_command(words: list[str], cwd: str) -> tuple[str, ...]:
    """The command as it will be run: a name without a slash is looked up once, a relative path is below `cwd`."""
    import shutil

    if not words:
        raise UsageError("COMMAND is missing", "the command and its arguments go after --")
    found = shutil.which(words[0] if "/" not in words[0] else os.path.join(cwd, words[0]))  # noqa: PTH118 - as above
    if found is None:
        raise UsageError(f"COMMAND: {words[0]} is not there, or cannot be run", "is it on PATH, and executable?")
    return (os.path.abspath(found), *words[1:])  # noqa: PTH100 - as above


def _sandbox(values: dict[str, Any], cwd: str) -> Sandbox | None:
    """The sandbox for --sandbox; None without it. Raises UsageError where none works, and for missing paths."""
    import shutil

    from aghbus.cli.worker.confine import LEAST_ABI, Sandbox, landlock_abi

    read, write, wanted = values["sandbox_read"], values["sandbox_write"], values["sandbox_with"]
    if not values["sandbox"]:
        if read or write or wanted:
            raise UsageError("--sandbox-read, --sandbox-write and --sandbox-with need --sandbox")
        return None
    for path in (*read, *write):
        if not os.path.exists(path):  # noqa: PTH110 - as above
            raise UsageError(f"--sandbox: {path} is not there")
    paths = tuple(map(os.path.realpath, read)), (cwd, *map(os.path.realpath, write))
    why = "as --sandbox-with says"
    if wanted != "landlock":
        program = shutil.which("bwrap")
        sandbox = Sandbox(*paths, bubblewrap=program or "")
        problem = sandbox.problem(cwd) if program else "bwrap is not installed"
        if not problem:
            return sandbox
        why = f"bubblewrap does not work here: {problem}"
        if wanted:
            raise UsageError(f"--sandbox-with: {why}", "install bubblewrap, and allow user namespaces")
    if landlock_abi() < LEAST_ABI:
        hint = "run without --sandbox, and confine the worker otherwise: a container, systemd, a user of its own"
        raise UsageError(f"--sandbox: this kernel has no Landlock of Linux 6.2 or later ({why})", hint)
    return Sandbox(*paths, warning=f"the sandbox is Landlock only ({why}): {LETS_THROUGH}")


def _check_outside(state: str, paths: tuple[str, ...]) -> None:
    for path in paths:
        if os.path.commonpath((path, os.path.realpath(state))) == path:
            why = f"--sandbox: {path} contains the state of the daemons ({state}), with their keys"
            raise UsageError(why, "name narrower folders: --cwd, --sandbox-read, --sandbox-write")


def _accepts(pairs: list[tuple[str, str]], *, allow_unverified: bool) -> dict[str, frozenset[str]]:
    plain = next((value for name, value in pairs if name == "from" and "@" not in value), None)
    if plain is not None and not allow_unverified:
        why = f"--accept from={plain}: without a key a name is only a claim, and any peer may use it"
        raise UsageError(why, "give the handle of a peer with a key, or add --allow-unverified")
    pairs = [pair for pair in pairs if pair != _OTHERS]
    return {name: frozenset(value for key, value in pairs if key == name) for name, _ in pairs}


def _accept(text: str) -> tuple[str, str]:
    if text == _OTHERS[0]:
        return _OTHERS
    name, equals, value = text.partition("=")
    if name not in ACCEPTS or not equals or not value:
        raise ValueError("must be intent=VALUE, from=PEER, kind=say|capability, trust=verified or others")
    if name == "trust" and value != "verified":
        raise ValueError("trust=verified is the only value")
    return name, value


def _limit(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    with suppress(ValueError):
        if name == "cpu":
            return name, max(1, round(lifetime(value)))
        if name in ("memory", "file-size"):
            unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(value[-1:], 1)
            return name, positive(value if unit == 1 else value[:-1]) * unit
        if name == "files":
            return name, positive(value)
    raise ValueError("must be cpu=TIME, memory=BYTES, files=N or file-size=BYTES (also with K, M or G)")


def _variable(text: str) -> str:
    if not text or "=" in text:
        raise ValueError("must be the name of a variable, without a value")
    return text


def _pattern(text: str) -> str:
    from aghbus.cli.worker.artifacts import check_pattern

    return check_pattern(text)


RUNNING = (
    Argument("--concurrency", metavar="N", type=positive, default=1, help="commands at a time (default 1)"),
    Argument("--when-busy", choices=("reject", "queue"), help="what to do with further work (default queue)"),
    Argument("--queue", metavar="N", type=positive, default=QUEUE, help=f"works that may wait (default {QUEUE})"),
    Argument(
        "--without-work",
        choices=("run", "acknowledge", "leave"),
        help="what to do with messages without a work (default acknowledge; bridge agentos: run)",
    ),
    Argument(
        "--time-limit",
        metavar="TIME",
        type=lifetime,
        default=1800.0,
        help="end a command after this long (default 30m)",
    ),
    Argument("--grace", metavar="TIME", type=seconds, default=5.0, help="from SIGTERM to SIGKILL (default 5s)"),
    Argument(
        "--heartbeat",
        metavar="TIME",
        type=lifetime,
        default=10.0,
        help="shortest progress interval (default 10s)",
    ),
    Argument(
        "--drain",
        metavar="TIME",
        type=seconds,
        default=30.0,
        help="when stopping, wait this long for running commands (default 30s)",
    ),
    Argument(
        "--answer-within",
        metavar="TIME",
        type=lifetime,
        default=86400.0,
        help="how long a work waits for the answer to a question (default 1d)",
    ),
    Argument("--cwd", metavar="DIR", help="folder to run the command in (default: this one)"),
    Argument(
        "--accept",
        metavar="NAME=VALUE",
        action="append",
        type=_accept,
        help="only work with this intent, from, kind or trust; others: also work of peers that were not admitted",
    ),
    Argument("--allow-unverified", action="store_true", help="let --accept from= name peers without a key"),
    Argument(
        "--pass-env", metavar="NAME", action="append", type=_variable, help="a variable that the command gets too"
    ),
    Argument("--limit", metavar="NAME=VALUE", action="append", type=_limit, help="cpu, memory, files or file-size"),
    Argument("--sandbox", action="store_true", help="confine the command: bubblewrap, or else Landlock"),
    Argument("--sandbox-with", choices=("bubblewrap", "landlock"), help="only this sandbox (default: what works)"),
    Argument("--sandbox-read", metavar="PATH", action="append", help="what it may read and execute besides the system"),
    Argument("--sandbox-write", metavar="PATH", action="append", help="what it may write besides its folder"),
    Argument("--on-restart", choices=("fail", "rerun"), help="a command interrupted by a restart (default fail)"),
    Argument("--max-jobs", metavar="N", type=positive, help="exit after this number of jobs"),
    Argument("--once", action="store_true", help="run one job, and exit with its outcome"),
)
"""How commands are run, here and in `aghctl bridge FORMAT -- COMMAND`."""

COMMANDS = {
    "serve": Command(
        run,
        description=(
            "Run any command as a worker: it takes work from the inbox, accepts it, runs the command with the work as JSON on\n"
            "standard input and in AGH_ variables, reports the last output line while it runs, and exit code and output as\n"
            "the work's result. A command that asks runs again with the answer. No shell is involved, and no text of a peer\n"
            "becomes an argument. In COMMAND, {capability} is the served capability that the work names. See docs/serve.md."
        ),
        examples=[
            "aghctl --name patch-worker serve --capability test.run -- pytest -q",
            "aghctl serve --capability test.run --concurrency 2 --time-limit 10m --artifact 'reports/*.xml' -- make test",
            "aghctl serve --capability test.run --accept intent=request --once -o jsonl -- ./run-tests",
            "aghctl serve --capability test.run --capability test.lint -- make {capability}",
        ],
        arguments=[
            Argument("command", nargs="*", help="the command and its arguments, after --"),
            Argument(
                "--capability",
                metavar="ID",
                action="append",
                required=True,
                help="capability of the daemon to serve",
            ),
            Argument(
                "--artifact",
                metavar="PATTERN",
                action="append",
                type=_pattern,
                help="files to report, below the command's folder: 'reports/*.xml'",
            ),
            *RUNNING,
        ],
        trailing="command",
    )
}
