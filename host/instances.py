"""The instances of this user that have state on disk."""

from __future__ import annotations

import os

from aghbus.host.locations import Locations, is_legal_name


def stored_instances(places: Locations) -> list[str]:
    """Names of the instances whose state is in the same folder as that of `places`, sorted."""
    try:
        names = os.listdir(places.state_dir.rpartition("/")[0])  # noqa: PTH208 - pathlib is slow to load
    except OSError:
        return []
    return sorted(name for name in names if is_legal_name(name))
