"""The command line of `aghd`.

Exit codes: 0 all went well; 1 a failure while running; 2 a usage or configuration error; 3 is kept free; 141 the reader of the
output went away.
Only `run` imports the node and with it NATS, SQLite and HTTP, so that the other commands answer at once.
"""

import argparse
import importlib.metadata
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from aghbus.daemon.base.logs import configure, event, verbosity_level
from aghbus.daemon.config.display import add_flags, problems_json, problems_text, show_json, show_text
from aghbus.daemon.config.folders import prepare_folders, this_host
from aghbus.daemon.config.layers import ConfigError
from aghbus.daemon.config.loader import Inspect, Loaded, load_settings
from aghbus.daemon.config.settings import Settings
from aghbus.protocol.limits import PROTOCOL
from aghbus.protocol.text import escape
from aghbus.store.host.locations import LocationError
from aghbus.store.host.stdio import discard, reopen_closed

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
BROKEN_PIPE: Final = 141  # 128 + SIGPIPE, as shells report it

_RUN_EXAMPLES: Final = """examples:
  aghd run                                     a peer called like this host, on the embedded broker
  aghd run --name patch-worker --capability test.run --capability code.patch
  aghd run --name ops --nats nats://127.0.0.1:4222 --nats-creds ~/ops.creds
  NATS_CONTEXT=staging aghd run --name ops -v --log-format json
"""
_SHOW_EXAMPLES: Final = """examples:
  aghd config show                             every key, its value and where it comes from
  aghd config show --name ops -o json
"""
_CHECK_EXAMPLES: Final = """examples:
  aghd config check                            print every problem; exit 2 if there is one
  aghd config check --config deploy/aghbus.toml -o json
"""
_STORE_EXAMPLES: Final = """examples:
  aghd check-store --name ops                  read all of it; exit 1 if something is wrong
  aghd check-store --name ops --quick -o json  what the next start would look at
  aghd check-store --name ops --accept-loss    a reported loss is known now (the daemon must be stopped)
"""
_EXAMPLES: Final = """examples:
  aghd run --name ops
  aghd config show --name ops
  aghd version -o json

configuration: flags over AGHD_* variables over NATS_URL and NATS_CONTEXT over TOML files over defaults
"""


def entry(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (the process's arguments when None) and return its exit code."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        reopen_closed()
    try:
        code = _carry_out(build_parser(), argv)
        _complain("", end="")  # argparse leaves it to the interpreter's end to notice that nobody reads
        if not sys.stdout.closed:  # as a greeting that could not be written leaves it
            _print("", end="")
        return code
    except _OutputLost as lost:
        return lost.code


def _carry_out(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has printed its help or its complaint
        return int(stop.code or OK)
    command: Callable[[argparse.Namespace], int] | None = args.command
    if command is None:
        _complain(parser.format_help().rstrip("\n"))
        return USAGE
    return command(args)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; each command leaves its function in `command`."""
    parser = _parser(argparse.ArgumentParser, prog="aghd", description="A peer on the AGH Network.", epilog=_EXAMPLES)
    parser.set_defaults(command=None)
    parser.add_argument("--version", action="version", version=f"aghd {importlib.metadata.version('aghbus')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    run = _parser(commands.add_parser, "run", help="run the daemon in the foreground", epilog=_RUN_EXAMPLES)
    run.usage = "aghd run [--name NAME] [--capability ID]... [options]"
    run.add_argument("-q", "--quiet", action="store_true", help="print no banner")
    _configurable(run, _run)
    config = _parser(commands.add_parser, "config", help="show or check the configuration", epilog=_SHOW_EXAMPLES)
    actions = config.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = _parser(actions.add_parser, "show", help="every key, its value and its origin", epilog=_SHOW_EXAMPLES)
    _configurable(_with_output(show), _config_show)
    check = _parser(actions.add_parser, "check", help="print every problem", epilog=_CHECK_EXAMPLES)
    _configurable(_with_output(check), _config_check)
    store = _parser(commands.add_parser, "check-store", help="whether the store is whole", epilog=_STORE_EXAMPLES)
    store.usage = "aghd check-store [--name NAME] [--quick | --accept-loss] [options]"
    action = store.add_mutually_exclusive_group()
    action.add_argument("--quick", action="store_true", help="only what the next start would look at")
    action.add_argument("--accept-loss", action="store_true", help="end the warning about a loss that was found")
    _configurable(_with_output(store), _check_store)
    version = _with_output(_parser(commands.add_parser, "version", help="print the version"))
    version.set_defaults(command=_version)
    return parser


def _parser(make: Callable[..., argparse.ArgumentParser], *args: str, **options: Any) -> argparse.ArgumentParser:
    options.setdefault("description", options.get("help"))
    return make(*args, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)


def _with_output(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("-o", "--output", choices=("human", "json"), default="human", help="form of the output")
    return parser


def _configurable(parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], int]) -> None:
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log level info; -vv: debug")
    add_flags(parser)
    parser.set_defaults(command=command)


def _load(args: argparse.Namespace, inspect: Inspect | None = None) -> Loaded:
    flags = dict(vars(args))
    if flags["log.level"] is None:
        flags["log.level"] = verbosity_level(args.verbose)
    return load_settings(flags, os.environ, this_host(os.environ), inspect=inspect)


def _load_checked(args: argparse.Namespace) -> Loaded:
    from aghbus.daemon.check_config import check_named_files  # reads catalogs and contexts, which `show` does not

    return _load(args, lambda loaded, faulty: check_named_files(loaded, faulty, os.environ))


def _run(args: argparse.Namespace) -> int:
    try:
        loaded = _load_checked(args)
    except ConfigError as error:
        return _refuse(error)
    configure(loaded.settings.log.level, loaded.settings.log.format)
    log = logging.getLogger("aghbus.main")
    for note in loaded.notes:
        event(log, logging.WARNING, "configuration", note=note)
    try:
        prepare_folders(loaded.locations)
        return _run_daemon(loaded, None if args.quiet else sys.stdout, lambda: _load(args).settings)
    except LocationError as error:
        return _fail(f"{error.key}: {error.rule}", error.hint)
    except KeyboardInterrupt:  # before the daemon took over the signals
        return FAILED
    except Exception as error:
        # An error meant for operators carries a hint or its problems; anything else is a defect of ours and shows where.
        if hasattr(error, "hint") or hasattr(error, "problems"):
            return _fail(str(error), str(getattr(error, "hint", "")))
        log.exception("the daemon stopped on an unexpected error")
        return _fail(str(error) or type(error).__name__, "the log has the traceback")


def _run_daemon(loaded: Loaded, banner: TextIO | None, reload: Callable[[], Settings]) -> int:
    from aghbus.daemon.base import runtime as tuning  # only this command needs it
    from aghbus.daemon.process import run_daemon  # and this, which is most of the start-up time

    return tuning.run(run_daemon(loaded.settings, loaded.locations, banner=banner, reload=reload))


def _config_show(args: argparse.Namespace) -> int:
    try:
        loaded = _load(args)
    except ConfigError as error:
        return _refuse(error)
    _print(show_json(loaded) if args.output == "json" else show_text(loaded))
    return OK


def _config_check(args: argparse.Namespace) -> int:
    try:
        loaded = _load_checked(args)
    except ConfigError as error:
        if args.output == "json":
            _print(problems_json(error.problems))
            return USAGE
        return _refuse(error)
    if args.output == "json":
        _print(problems_json((), loaded.notes))
        return OK
    for note in loaded.notes:
        _print(f"note: {note}")
    _print("configuration is good")
    return OK


def _check_store(args: argparse.Namespace) -> int:
    from aghbus.daemon.check_store import accept_loss, as_json, as_text, check_store  # opens SQLite
    from aghbus.store.errors import StoreError

    try:
        path = Path(_load(args).locations.store_path)
        if args.accept_loss:
            _print(escape(accept_loss(path)))
            return OK
    except ConfigError as error:
        return _refuse(error)
    except StoreError as error:
        return _fail(str(error), error.hint)
    checked = check_store(path, quick=args.quick)
    _print(as_json(checked) if args.output == "json" else as_text(checked))
    return OK if checked.ok else FAILED


def _version(args: argparse.Namespace) -> int:
    version = importlib.metadata.version("aghbus")
    if args.output == "json":
        _print(json.dumps({"name": "aghd", "version": version, "protocol": PROTOCOL}))
    else:
        _print(f"aghd {version}")
    return OK


def _refuse(error: ConfigError) -> int:
    count = len(error.problems)
    _complain(f"aghd: the configuration has {count} problem{'s' if count > 1 else ''}\n{problems_text(error.problems)}")
    return USAGE


def _fail(message: str, hint: str) -> int:
    _complain(f"aghd: {escape(message)}" + (f"\n    hint: {escape(hint)}" if hint else ""))
    return FAILED


class _OutputLost(Exception):
    """Standard output cannot be written; `code` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


def _print(text: str, end: str = "\n") -> None:
    try:
        sys.stdout.write(text + end)
        sys.stdout.flush()
    except OSError as error:
        discard(1)
        if isinstance(error, BrokenPipeError):
            raise _OutputLost(BROKEN_PIPE) from None
        raise _OutputLost(_fail(f"standard output cannot be written: {error.strerror}", "")) from None


def _complain(text: str, end: str = "\n") -> None:
    try:
        sys.stderr.write(text + end)
        sys.stderr.flush()
    except OSError:  # nobody listens
        discard(2)
