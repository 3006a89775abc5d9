"""Values that the shell completes: instances, and what the daemon knows about peers, capabilities and works.

Each function is a completer of argcomplete: it returns values with a description. Without a daemon there are none.
"""

from __future__ import annotations

import os

from aghbus.protocol.base.annotations import Any

ANSWER_SECONDS = 1.0
"""Seconds that the TAB key waits for the daemon."""
WORKS = 100
"""Works that are offered: the last changed."""
DESCRIPTION_COLUMNS = 60


def instances(**_: Any) -> list[str]:
    """Instances that run or have state on disk."""
    from aghbus.client import locate
    from aghbus.client.errors import ClientError

    try:
        return sorted({places.name for places, _ in locate.instances(os.environ)})
    except ClientError:
        return []


def peers(parsed_args: Any, **_: Any) -> dict[str, str]:
    """Other peers that presence knows, with their capabilities."""
    found = _answer(parsed_args, "/v1/peers").get("peers", [])
    return {
        peer["peer_id"]: _description(", ".join(peer["card"].get("capabilities") or ()))
        for peer in found
        if peer["presence"] != "local"
    }


def capabilities(parsed_args: Any, **_: Any) -> dict[str, str]:
    """Capabilities in the cards of known peers, with one of them."""
    found = _answer(parsed_args, "/v1/peers").get("peers", [])
    return {
        str(name): _description(peer["peer_id"]) for peer in found for name in peer["card"].get("capabilities") or ()
    }


def own_capabilities(parsed_args: Any, **_: Any) -> dict[str, str]:
    """Capabilities of our own catalog."""
    found = _answer(parsed_args, "/v1/capabilities").get("capabilities", [])
    return {entry["id"]: _description(entry["summary"] or "") for entry in found}


def works(parsed_args: Any, prefix: str = "", **_: Any) -> dict[str, str]:
    """Ids of the last changed works, with state and text: by their ends, which differ, unless a beginning is typed."""
    from aghbus.cli.app.text import short_id

    found = _answer(parsed_args, "/v1/works", [("limit", WORKS)]).get("works", [])
    whole = prefix.startswith("w")
    return {
        work["work_id"] if whole else short_id(work["work_id"]): _description(f"{work['state']} {work['text'] or ''}")
        for work in found
    }


def _answer(parsed_args: Any, path: str, query: Any = ()) -> dict[str, Any]:
    """The response of the daemon that the options name; empty without one."""
    from aghbus.client.api import Api
    from aghbus.client.errors import ClientError
    from aghbus.client.locate import find

    options = {name: getattr(parsed_args, name, None) for name in ("name", "socket", "api", "token_file")}
    try:
        return Api(find(options, os.environ), ANSWER_SECONDS).get(path, query)
    except ClientError:
        return {}


def _description(text: str) -> str:
    from aghbus.cli.app.text import cut, safe

    return cut(safe(text), DESCRIPTION_COLUMNS)
