"""The context of a running command: global options, environment, output, and the API on first use."""

from __future__ import annotations

import os
from collections.abc import Callable

from aghbus.cli.app.output import Output
from aghbus.protocol.base.annotations import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.client.api import Api
    from aghbus.host.locations import Locations

Run = Callable[["Context", dict[str, Any]], int]

DEFAULT_TIMEOUT = 30.0
"""Seconds to wait for an answer of the daemon, or for a daemon that is away during a stream."""

_DAEMON_FLAGS = {"name": "--name", "socket": "--socket", "api": "--api", "token_file": "--token-file"}


class Context:
    """One run of one command."""

    def __init__(self, options: dict[str, Any], output: Output | None = None) -> None:
        self.options = options
        self.env = os.environ
        self.output = output or Output(options["output"] or "human")
        self._api: Api | None = None

    @property
    def instance(self) -> str:
        """The name of the instance that options and environment give, else that of this host."""
        from aghbus.client.locate import chosen_name

        return chosen_name(self.options, self.env)

    @property
    def places(self) -> Locations:
        """The paths of the instance, the user's own or one of the system. Raises UsageError for an illegal name."""
        from aghbus.client.locate import instance_places

        return instance_places(self.options, self.env)

    @property
    def api(self) -> Api:
        """The daemon's API; finding the daemon happens on first use, so that offline commands never look for one."""
        if self._api is None:
            from aghbus.client.api import Api
            from aghbus.client.locate import find

            self._api = Api(find(self.options, self.env), self.timeout)
        return self._api

    def command(self, words: str) -> str:
        """`aghctl … words`, with the same options for the daemon as this run: a next step that a person can paste."""
        from aghbus.cli.app.text import shell

        given = [f"{flag} {shell(self.options[key])}" for key, flag in _DAEMON_FLAGS.items() if self.options[key]]
        return " ".join(["aghctl", *given, words])

    def pasteable(self, hint: str) -> str:
        """A hint of the daemon, whose commands (`aghctl …`) get the same options."""
        return hint.replace("`aghctl ", f"`{self.command('')}")

    @property
    def timeout(self) -> float:
        """Seconds to wait for the daemon."""
        given = self.options["timeout"]
        return DEFAULT_TIMEOUT if given is None else float(given)
