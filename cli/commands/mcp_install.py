"""`aghctl mcp install` and `mcp uninstall`."""

from __future__ import annotations

import os
import sys

from aghbus.cli.app.errors import YES
from aghbus.cli.app.text import safe
from aghbus.cli.commands.mcp import MAY_WAKE
from aghbus.cli.context import Context
from aghbus.cli.mcp.hosts import APPROVAL, HOSTS, SCOPES, changes, scopes
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

_KEPT = {"socket": "--socket", "api": "--api", "token_file": "--token-file"}


def entry_name(text: str) -> str:
    """The name of an entry. ValueError names the rule."""
    if not text.isascii() or not text.replace("_", "").replace("-", "").isalnum():
        raise ValueError("must be letters, digits, '_' and '-'")
    return text


def run_install(context: Context, values: dict[str, Any]) -> int:
    """Add the server to the host's files."""
    options = ["--peer-per-session"] if values["peer_per_session"] else []
    options += ["--wake", values["wake"]] if values["wake"] != MAY_WAKE[0] else []
    return _apply(context, values, [_program(context), *_daemon(context), "mcp", *options])


def run_uninstall(context: Context, values: dict[str, Any]) -> int:
    """Remove it."""
    return _apply(context, values, None)


def _apply(context: Context, values: dict[str, Any], command: list[str] | None) -> int:
    from aghbus.cli.mcp.files import require_within, rewrite

    host, scope = values["host"], values["scope"] or scopes(values["host"])[0]
    home = context.env.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - pathlib is slow to load
    folder = os.getcwd()  # noqa: PTH109
    wanted = changes(host, scope, values["entry"], command, context.env, home=home, folder=folder)
    if command is not None and values["print"]:
        files = [{"path": change.path, "text": change.apply("")} for change in wanted]
        context.output.answer({"host": host, "files": files}, _text)
        return YES
    if scope == "project":
        require_within(folder, wanted)
    done = [{"path": change.path, "changed": rewrite(change)} for change in wanted]
    context.output.answer({"host": host, "files": done}, _human)
    if any(file["changed"] for file in done):
        context.output.note(f"sessions of {host} that run already do not notice: start a new one")
        if host == "codex" and command is not None:
            context.output.note(f"codex calls these tools without asking you, because of {APPROVAL} in that file")
    return YES


def _text(answer: dict[str, Any]) -> str:
    return "\n".join(f"# {safe(file['path'])}\n{file['text'].rstrip()}" for file in answer["files"])


def _human(answer: dict[str, Any]) -> str:
    return "\n".join(
        f"{'changed' if file['changed'] else 'as it was'}  {safe(file['path'])}" for file in answer["files"]
    )


def _daemon(context: Context) -> list[str]:
    """The options by which the installed command finds the daemon. Raises UsageError when several run and none is named."""
    from aghbus.client.locate import running

    given = [word for key, flag in _KEPT.items() if context.options[key] for word in (flag, context.options[key])]
    if given and not context.options["name"]:
        return given
    name = context.instance
    if not context.options["name"] and not context.env.get("AGHD_NAME"):
        others = [places.name for places in running(context.env)]
        if name not in others and len(others) > 1:
            raise UsageError("several daemons are running", f"choose one with --name: {', '.join(others)}")
        name = others[0] if len(others) == 1 else name
    return ["--name", name, *given]


def _program(context: Context) -> str:
    """The absolute path of aghctl. Raises UsageError when there is none."""
    folders = [os.path.dirname(sys.executable), *context.env.get("PATH", "").split(":")]  # noqa: PTH120
    candidates = [f"{folder}/aghctl" for folder in folders if folder.startswith("/")]
    if os.path.basename(sys.argv[0]) == "aghctl":  # noqa: PTH119
        candidates.insert(0, os.path.abspath(sys.argv[0]))  # noqa: PTH100
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return candidate
    raise UsageError("the program aghctl is neither beside Python nor on the PATH")


_HOST = Argument("host", choices=HOSTS, help="the host")
_SCOPE = Argument(
    "--scope", choices=SCOPES, help="for this user (default), or for the project here (default of vscode)"
)
_ENTRY = Argument(
    "--entry", metavar="NAME", type=entry_name, default="aghbus", help="name of the entry (default aghbus)"
)

COMMANDS = {
    "mcp install": Command(
        run_install,
        description=(
            "Add `aghctl mcp` to the configuration of an agent host, with the absolute path of aghctl and the name of the\n"
            "daemon; for claude also the Stop hook, for codex the setting by which it calls these tools without asking.\n"
            "Everything else in the files stays as it is."
        ),
        examples=["aghctl --name ops mcp install claude", "aghctl mcp install codex --print"],
        arguments=[
            _HOST,
            _SCOPE,
            _ENTRY,
            Argument("--print", action="store_true", help="print what would be added, and change nothing"),
            Argument("--peer-per-session", action="store_true", help="each session is a peer of its own"),
            Argument(
                "--wake", choices=MAY_WAKE, default=MAY_WAKE[0], help="whose messages wake sessions (default contacts)"
            ),
        ],
    ),
    "mcp uninstall": Command(
        run_uninstall,
        description="Remove what `mcp install` added to the configuration of an agent host.",
        examples=["aghctl mcp uninstall claude", "aghctl mcp uninstall vscode --scope user"],
        arguments=[_HOST, _SCOPE, _ENTRY],
    ),
}
