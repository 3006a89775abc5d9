"""The last look at what our own agent sends: an envelope that carries obvious credentials does not leave.

Only body and ext are looked at, since the rest is ours. What is found is named by its path; its value is never repeated.
"""

import logging
from typing import Any, Final

from aghbus.daemon.state.context import Core
from aghbus.protocol.base.secret_patterns import Path, looks_like_secret_text, may_hold_secrets, secret_paths
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import InvalidRequest

CODE: Final = "secret_like"
_CHECKED: Final = ("body", "ext")
_BODY: Final = b'"body":'
_HIDDEN: Final = "***"  # for a key that is itself a credential


def check(core: Core, envelope: Envelope, *, allowed: bool) -> None:
    """Raise InvalidRequest (code `secret_like`) when `envelope` seems to carry credentials, or log it, as `secrets.guard` says.

    `allowed`: the caller said that this one may go as it is.
    """
    mode = core.settings.secrets.guard
    if allowed or mode == "off" or not may_hold_secrets(_looked_at(envelope.raw)):
        return
    found = first_secret(envelope.document())
    if found is None:
        return
    core.counters.add(f"secrets.{'refused' if mode == 'refuse' else 'warned'}")
    if mode == "refuse":
        raise InvalidRequest(
            f"{found}: looks like a credential, and everybody on the channel could read it",
            hint="leave it out, or say allow_secrets: true (aghctl: --allow-secrets) if it is none",
            code=CODE,
        )
    core.noise.event(logging.WARNING, "secrets", "sent what looks like a credential", id=envelope.id, path=found)


def _looked_at(raw: bytes) -> bytes:
    """From the body on: an own envelope has only ids and names before it, and in no string can a key stand unescaped."""
    return raw[max(raw.find(_BODY), 0) :]


def first_secret(document: dict[str, Any]) -> str | None:
    """Where body or ext of an envelope first seem to hold a credential, as `body.result.api_key` or `ext.list[2]`."""
    for name in _CHECKED:
        path = next(secret_paths(document.get(name)), None)
        if path is not None:
            return _shown((name, *path))
    return None


def _shown(path: Path) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{_HIDDEN if looks_like_secret_text(part) else part}"
    return text.removeprefix(".")
