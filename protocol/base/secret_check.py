"""The check of an outgoing envelope for obvious credentials. A finding is named by its path; its value is never repeated."""

from typing import Any, Final

from aghbus.protocol.base.errors import InvalidRequest
from aghbus.protocol.base.refused_text import form_of
from aghbus.protocol.base.secret_patterns import Path, looks_like_secret_text, secret_paths

CODE: Final = "secret_like"
_CHECKED: Final = ("body", "ext")
_HIDDEN: Final = "***"  # for a key that is itself a credential


def first_secret(document: dict[str, Any]) -> str | None:
    """The path of the first apparent credential in body or ext, as `body.result.api_key` or `ext.list[2]`; None without one."""
    for name in _CHECKED:
        path = next(secret_paths(document.get(name)), None)
        if path is not None:
            return shown((name, *path))
    return None


def secret_like(path: str) -> InvalidRequest:
    """The refusal of an envelope with a credential at `path`."""
    return InvalidRequest(
        f"{path}: looks like a credential, and everybody on the channel could read it",
        hint="leave it out, or say allow_secrets: true (aghctl: --allow-secrets) if it is none",
        code=CODE,
    )


def shown(path: Path) -> str:
    """A path for people, without keys that are credentials themselves."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{_HIDDEN if looks_like_secret_text(part) or form_of(part) else part}"
    return text.removeprefix(".")
