"""What `aghctl doctor` says about the bridge to Synadia's agents."""

from __future__ import annotations

import os

SUFFIX = ".bridge-synadia"
"""What the name of the journal's folder has after that of the daemon."""


def journal_folder(state_folder: str, name: str) -> str:
    """The folder of `aghctl bridge synadia join` for the daemon called `name`, whose state is in `state_folder`."""
    return f"{state_folder.rpartition('/instances/')[0]}/serve/{name}{SUFFIX}"


def check(state_folder: str, name: str) -> tuple[str, str, str] | None:
    """State, detail and hint; None where no such bridge has run."""
    folder = journal_folder(state_folder, name)
    if not os.path.isdir(folder):  # noqa: PTH112 - pathlib is slow to load
        return None
    from aghbus.client.work.journal import Journal
    from aghbus.gateways.synadia import sdk

    versions = sdk.versions()
    if missing := [package for package, version in versions.items() if version is None]:
        return "fail", f"{' and '.join(missing)} not installed: the bridge to Synadia's agents cannot start", sdk.HINT
    try:
        left = Journal(folder).abandoned()
    except OSError as error:
        return "warn", f"{folder} cannot be read: {error.strerror}", "run doctor as the user of the bridge"
    for entry in left:
        entry.leave()
    if left:
        what = f"{len(left)} work{'s' * (len(left) > 1)} of a bridge to Synadia's agents that has ended"
        return "warn", what, f"start it again: aghctl --name {name} bridge synadia join"
    return "ok", ", ".join(f"{package} {version}" for package, version in versions.items()), ""
