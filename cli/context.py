"""What a running command has in its hands: global options, environment, output, and the API once it is wanted."""

from __future__ import annotations

import os

from aghbus.cli.app.output import Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aghbus.client.api import Api

    Run = Callable[["Context", dict[str, Any]], int]

DEFAULT_TIMEOUT = 30.0
"""Seconds that the daemon may take to answer, or a stream may be without it."""

_DAEMON_FLAGS = {"name": "--name", "socket": "--socket", "api": "--api", "token_file": "--token-file"}


class Context:
    """One run of one command."""

    __slots__ = ("_api", "env", "options", "output")

    def __init__(self, options: dict[str, Any], output: Output | None = None) -> None:
        self.options = options
        self.env = os.environ
        self.output = output or Output(options["output"] or "human")
        self._api: Api | None = None

    @property
    def api(self) -> Api:
        """The daemon's API; finding the daemon happens on first use, so that offline commands never look for one."""
        if self._api is None:
            from aghbus.client.api import Api
            from aghbus.client.locate import find

            self._api = Api(find(self.options, self.env), self.timeout)
        return self._api

    def command(self, words: str) -> str:
        """`aghctl … words`, naming the daemon as this run did: a next step that a person can paste."""
        from aghbus.cli.app.text import shell

        given = [f"{flag} {shell(self.options[key])}" for key, flag in _DAEMON_FLAGS.items() if self.options[key]]
        return " ".join(["aghctl", *given, words])

    @property
    def timeout(self) -> float:
        """Seconds to wait for the daemon."""
        given = self.options["timeout"]
        return DEFAULT_TIMEOUT if given is None else float(given)
