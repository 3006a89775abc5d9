"""The journals of the gateways that give works to agents of another protocol, and what `aghctl doctor` says about them."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Final, NamedTuple

from aghbus.host.locations import Locations


class Gateway(NamedTuple):
    """`command` of aghctl, the kind of its folder (client/work/folders.py), and the module and the extra it needs."""

    command: str
    kind: str
    module: str
    extra: str

    def check(self, places: Locations) -> tuple[str, str, str] | None:
        """State, detail and hint; None where it has not run for the daemon with these places."""
        folder = f"{places.clients_dir}/{self.kind}"
        if not os.path.isdir(folder):  # noqa: PTH112 - pathlib is slow to load
            return None
        from aghbus.client.work.journal import Journal

        if find_spec(self.module) is None:
            return "fail", f"{self.module} is not installed", f'pip install "aghbus[{self.extra}]"'
        try:
            left = Journal(folder).abandoned()
        except OSError as error:
            return "warn", f"{folder} cannot be read: {error.strerror}", f"run doctor as the user of {self.command}"
        for entry in left:
            entry.leave()
        if left:
            what = f"{len(left)} work{'s' * (len(left) > 1)} of a process that has ended"
            return "warn", what, f"start it again: aghctl --name {places.name} {self.command}"
        return "ok", "no work is left of a process that has ended", ""


SYNADIA: Final = Gateway("bridge synadia join", "bridge-synadia", "synadia_ai", "synadia")
A2A: Final = Gateway("a2a join", "a2a-join", "a2a", "a2a")
A2A_SERVE: Final = "a2a-serve"
"""The kind of the folder of `a2a serve`, which has no journal."""
