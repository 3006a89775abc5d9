"""The journals of the gateways that give works to agents of another protocol, and what `aghctl doctor` says about them."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Final, NamedTuple


class Gateway(NamedTuple):
    """`command` of aghctl, the folder of its journal below that of all instances, and the module and the extra it needs."""

    command: str
    folder: str
    module: str
    extra: str

    def journal_folder(self, state_folder: str, name: str) -> str:
        """The folder for the daemon called `name`, whose state is in `state_folder`."""
        return f"{state_folder.rpartition('/instances/')[0]}/{self.folder.format(name=name)}"

    def check(self, state_folder: str, name: str) -> tuple[str, str, str] | None:
        """State, detail and hint; None where it has not run for this daemon."""
        folder = self.journal_folder(state_folder, name)
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
            return "warn", what, f"start it again: aghctl --name {name} {self.command}"
        return "ok", "no work is left of a process that has ended", ""


SYNADIA: Final = Gateway("bridge synadia join", "serve/{name}.bridge-synadia", "synadia_ai", "synadia")
A2A: Final = Gateway("a2a join", "a2a/{name}", "a2a", "a2a")
