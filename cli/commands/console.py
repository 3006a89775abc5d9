"""`aghctl console`: open the console of a daemon in a browser."""

from __future__ import annotations

from aghbus.cli.app.errors import YES
from aghbus.cli.context import Context
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any


def run(context: Context, values: dict[str, Any]) -> int:
    """Open the listener, and a browser with a ticket for it."""
    request = {"write": values["write"], **({} if values["port"] is None else {"port": values["port"]})}
    answer = context.api.post("/v1/console", request)
    answer["url"] = f"http://{answer['host']}:{answer['port']}/#ticket={answer['ticket']}"
    context.output.answer(answer, _human)
    if not values["no_browser"] and context.output.form == "human":
        _open(context, answer["url"])
    return YES


def _open(context: Context, url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        context.output.note("no browser was found: open the URL in one")


def _human(answer: dict[str, Any]) -> str:
    minutes = f"{answer['expires_in'] / 60:.0f} minutes"
    forward = f"ssh -L {answer['port']}:{answer['host']}:{answer['port']} THIS-MACHINE"
    return (
        f"{answer['url']}\n"
        f"the URL opens one tab within {minutes}; the page may {'act' if answer['write'] else 'only read'}\n"
        f"from another machine, first: {forward}"
    )


COMMANDS = {
    "console": Command(
        run,
        description=(
            "Open the console in a browser: works, messages, peers and the inbox of the instances of this user, live. The daemon\n"
            "serves it on 127.0.0.1 alone, and closes it when no tab has used it for 15 minutes (docs/console.md)."
        ),
        examples=["aghctl console", "aghctl console --write", "aghctl console --no-browser --port 4638"],
        arguments=[
            Argument("--write", action="store_true", help="let the page act: answer, cancel, requeue, admit"),
            Argument(
                "--port",
                metavar="PORT",
                type=int,
                help="port of the listener, such as for ssh -L (default: a free one)",
            ),
            Argument("--no-browser", action="store_true", help="only print the URL"),
        ],
    ),
}
