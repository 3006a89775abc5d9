"""What a daemon calls itself, from its configuration: the peer id that it would have without a key."""

from __future__ import annotations

import os

from aghbus.cli.app.errors import AnswerIsNo
from aghbus.cli.app.text import safe
from aghbus.client.locate import locations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def configured_peer_id(name: str, env: Mapping[str, str]) -> str:
    """The `peer_id` of the instance called `name`, as its daemon reads it from environment and files, else the name.

    What its command line says is not known here. Raises AnswerIsNo for a file that cannot be read.
    """
    if env.get("AGHD_PEER_ID"):
        return env["AGHD_PEER_ID"]
    if env.get("AGHD_CONFIG"):
        return _in_file(os.path.expanduser(env["AGHD_CONFIG"])) or name  # noqa: PTH111 - as in instance.py
    places = locations(name, env)
    for path in (places.instance_config_file, places.config_file):
        if path is not None and (found := _in_file(path)) is not None:
            return found
    return name


def _in_file(path: str) -> str | None:
    import tomllib

    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is slow to load
            document = tomllib.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or f"is no TOML: {error}"
        raise AnswerIsNo(
            f"the configuration file {path} cannot be read: {safe(why)}",
            "our name is in it: see `aghd config check`",
            code="configuration",
        ) from None
    found = document.get("peer_id")
    return found if isinstance(found, str) and found else None
