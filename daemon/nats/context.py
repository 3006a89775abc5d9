"""Contexts of the `nats` command line tool: `$XDG_CONFIG_HOME/nats/context/NAME.json`, the selected one named in `context.txt`."""

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from aghbus.daemon.nats.credential_files import NatsFiles
from aghbus.host.files import is_exposed

SELECTED = "@selected"
"""The value of nats.context that means the context chosen by `nats context select`."""

_KEY = "nats.context"
_USED = ("url", "token", "user", "password", "creds", "nkey", "cert", "key", "ca")
_IGNORED = frozenset({"description", "color_scheme", "jetstream_event_prefix"})  # they change nothing for a connection


class ContextFields(msgspec.Struct, frozen=True):
    """The fields of a context; empty strings for absent ones. `url` may list several, separated by commas."""

    url: str = ""
    token: str = ""
    user: str = ""
    password: str = ""
    creds: str = ""
    nkey: str = ""
    cert: str = ""
    key: str = ""
    ca: str = ""

    def __repr__(self) -> str:
        return f"ContextFields(url={'…' if self.url else ''!r})"  # a URL may hold a password


def read_context(name: str, env: Mapping[str, str], files: NatsFiles) -> ContextFields | None:
    """Reads the context `name`; None, with the problems noted in `files`, when it cannot be used."""
    folder = Path(env.get("XDG_CONFIG_HOME") or files.path("~/.config")) / "nats"
    if name == SELECTED:
        chosen = files.text(_KEY, folder / "context.txt", secret=False)
        if chosen is None:
            return None
        name = chosen
    if not name or "/" in name or "\\" in name or name in {".", ".."} or not name.isprintable():
        files.problem(_KEY, f"{name!r} is not a context's name", "see `nats context ls`")
        return None
    path = folder / "context" / f"{name}.json"
    # url may contain a secret, and so may every field but the paths
    text = files.text(_KEY, path, secret=False)
    return None if text is None else _parse(text, path, files)


def _parse(text: str, path: Path, files: NatsFiles) -> ContextFields | None:
    try:
        document = json.loads(text)
    except ValueError as error:
        files.problem(_KEY, f"{path} is not JSON: {error}", "write it again with `nats context save`")
        return None
    if not isinstance(document, dict):
        files.problem(_KEY, f"{path} is not a JSON object", "write it again with `nats context save`")
        return None
    known = len(files.problems)
    for field, value in document.items():
        if field in _USED and not isinstance(value, str):
            files.problem(_KEY, f"{path}: {field!r} must be a string")
        elif field not in _USED and field not in _IGNORED and value:
            files.problem(
                _KEY,
                f"{path}: {field!r} is not supported",
                "take a context without it, or name servers and credentials",
            )
    if len(files.problems) > known:
        return None
    fields = ContextFields(**{field: document.get(field, "") for field in _USED})
    if (fields.token or fields.password or "@" in fields.url) and is_exposed(path.stat()):
        files.warnings.append(f"{_KEY}: {path} contains a secret and can be read by others; chmod 600 {path}")
    return fields
