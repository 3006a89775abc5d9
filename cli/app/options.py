"""Options that several commands share, and the members of API requests that they become."""

from __future__ import annotations

import json
import os
import sys

from aghbus.cli.app.arguments import host_port, lifetime, limit
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument
from aghbus.protocol.base.annotations import Any

MAX_STDIN_CHARACTERS = 1 << 20
"""Characters read from standard input for one text: an envelope of 1 MiB holds no more."""


def json_object(text: str) -> dict[str, Any]:
    """A JSON object; `-` reads it from standard input. ValueError names the rule."""
    try:
        value = json.loads(stdin_or(text))
    except (ValueError, RecursionError):
        raise ValueError('must be a JSON object such as {"passed":true}') from None
    if not isinstance(value, dict):
        raise ValueError('must be a JSON object such as {"passed":true}')
    return value


class LocalFile(str):
    """The path of a file that is uploaded when the message is sent (cli/app/uploads.py)."""

    __slots__ = ()


def artifact(text: str) -> dict[str, Any] | LocalFile:
    """An artifact: a JSON object as it is, a URI as `{"uri": text}`, any other text is a file. ValueError names the rule."""
    if text.lstrip().startswith("{"):
        return json_object(text)
    scheme, colon, rest = text.partition(":")
    if colon and rest and scheme.replace("+", "").replace("-", "").replace(".", "").isalnum():
        return {"uri": text}
    if not text.strip():
        raise ValueError("must be a file, a URI or a JSON object")
    return LocalFile(text)


def stdin_or(text: str) -> str:
    """`text`, or all of standard input when it is `-`. Raises UsageError when that is too long or no UTF-8."""
    if text != "-":
        return text
    try:
        read = sys.stdin.buffer.read(4 * MAX_STDIN_CHARACTERS + 1).decode()
    except UnicodeDecodeError:
        hint = "text only; `aghctl artifact put` stores any file for other peers"
        raise UsageError("standard input is binary: it is not UTF-8 text", hint) from None
    if "\0" in read:
        raise UsageError("standard input is binary: it has a NUL character")
    if len(read) > MAX_STDIN_CHARACTERS:
        raise UsageError(f"standard input is longer than {MAX_STDIN_CHARACTERS} characters")
    return read.removesuffix("\n")


CHANNEL = Argument("--channel", help="channel, when the daemon has joined several")
LIMIT = Argument("--limit", metavar="N", type=limit, help="how many at most")
THREAD = Argument("--thread", metavar="ID", help="an existing thread")
ARTIFACT = Argument(
    "--artifact",
    metavar="REF",
    action="append",
    type=artifact,
    help="a file, which is uploaded, a URI or a JSON object",
)
SENDING = (
    CHANNEL,
    Argument("--expires-in", metavar="TIME", type=lifetime, help="lifetime: 30s, 5m, 24h (default: the daemon's)"),
    Argument("--id", help="your own message id; sending the same content again under it has no effect"),
    Argument("--allow-secrets", action="store_true", help="send it even if it seems to contain a credential"),
    Argument(
        "--replace-secrets",
        action="store_true",
        help="to a Go reference: replace what it refuses as a credential",
    ),
)
"""Options of every command that sends an envelope."""


def sending(values: dict[str, Any]) -> dict[str, Any]:
    """The members of a request that come from `SENDING`; None where not given, switches only where they are."""
    given = {name: values[name] for name in ("channel", "expires_in", "id")}
    return {**given, "ext": _trace(), **{name: True for name in ("allow_secrets", "replace_secrets") if values[name]}}


def _trace() -> dict[str, str] | None:
    """The trace that this program runs in, as extension members of an envelope (docs/operations.md)."""
    if "TRACEPARENT" not in os.environ:
        return None
    from aghbus.host.tracing import carrier_of_environment

    return carrier_of_environment(os.environ) or None


def one_of(values: dict[str, Any], *names: str) -> None:
    """Raise UsageError when more than one of these options is given."""
    given = [name for name in names if values[name]]
    if len(given) > 1:
        flags = " and ".join("--" + name.replace("_", "-") for name in given)
        raise UsageError(f"{flags} exclude each other")


METRICS = Argument(
    "--metrics", metavar="HOST:PORT", type=host_port, help="serve counters for Prometheus here, at /metrics"
)
