"""`aghctl capability digest` (offline)."""

from __future__ import annotations

import json
from collections.abc import Iterator

from aghbus.cli.app.errors import NO, YES, AnswerIsNo
from aghbus.cli.app.input import FILE, opened
from aghbus.cli.context import Context
from aghbus.host.command_line import Command
from aghbus.protocol.agh.capability_digest import capability_digest
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.base.annotations import Any

Found = tuple[str, Any]  # place, and the document or the error of reading it

_HINT = "a JSON or TOML capability record, or JSON lines of them"


class _Unreadable(Exception):
    """The text is not a document; the message has the reason."""


def run(context: Context, values: dict[str, Any]) -> int:
    """One digest a line; a bad document is an error on standard error and the others are still printed."""
    code = YES
    for where, document in _documents(opened(values["file"]).read(), values["file"] or "-"):
        try:
            record = _record(document)
            digest = capability_digest(record)
        except (ProtocolError, _Unreadable) as error:
            context.output.error(AnswerIsNo(f"{where}: {error}", code=getattr(error, "reason", "malformed")))
            code = NO
            continue
        if context.output.human:
            context.output.text(digest)
        else:
            context.output.line({"id": record["id"], "digest": digest})
    return code


def _documents(raw: bytes, name: str) -> Iterator[Found]:
    """Every document in a text: a whole JSON value, JSON lines, or TOML; the form is detected."""
    if not raw.strip():
        return
    if name.endswith(".toml"):
        yield from _entries(name, _toml(raw))
        return
    whole = _json(raw)
    if not isinstance(whole, _Unreadable):
        yield from _entries(name, whole)
        return
    split = [(f"line {number}", _json(line)) for number, line in enumerate(raw.split(b"\n"), 1) if line.strip()]
    if any(isinstance(document, dict) for _, document in split):
        for where, document in split:
            yield from _entries(where, document)
        return
    parsed = _toml(raw)
    yield from _entries(name, whole if isinstance(parsed, _Unreadable) and raw.lstrip()[:1] in b"{[" else parsed)


def _entries(where: str, document: Any) -> Iterator[Found]:
    """One document, or each of a catalog's `capabilities`."""
    several = document.get("capabilities") if isinstance(document, dict) else document
    if not isinstance(several, list):
        yield where, document
        return
    for number, entry in enumerate(several, 1):
        yield f"{where}, capability {number}", entry


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode())
    except UnicodeDecodeError:
        return _Unreadable("is not UTF-8")
    except (ValueError, RecursionError):
        return _Unreadable("is not JSON")


def _toml(raw: bytes) -> Any:
    import tomllib  # only if it is not JSON

    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError:
        return _Unreadable("is not UTF-8")
    except (ValueError, RecursionError):
        return _Unreadable(f"is neither JSON nor TOML: {_HINT} is needed")


def _record(document: Any) -> dict[str, Any]:
    if isinstance(document, _Unreadable):
        raise document
    inner = document.get("capability", document) if isinstance(document, dict) else document
    if not isinstance(inner, dict):
        raise _Unreadable("capability: must be an object")
    return inner


COMMANDS = {
    "capability digest": Command(
        run,
        description=(
            "Compute digests (specification, section 3) of a capability document in JSON or TOML, bare or below `capability`, of\n"
            "every entry of a catalog, or of JSON lines; one a line. Exits 1 if any document is bad. Needs no daemon."
        ),
        examples=["aghctl capability digest test.run.toml", "aghctl capability digest - < capabilities.jsonl"],
        arguments=[FILE],
    )
}
