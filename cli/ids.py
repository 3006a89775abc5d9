"""Ids as people type them: whole, or by their end.

Generated ids are UUIDv7, which begin alike and end differently. The daemon finds an id by its end (`id_end` of its lists).
"""

from __future__ import annotations

from functools import partial

from aghbus.cli.app.completers import works
from aghbus.cli.app.errors import AnswerIsNo
from aghbus.cli.app.text import quoted, safe
from aghbus.cli.context import Context
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument
from aghbus.protocol.base.annotations import Any

_MIN_END = 4  # characters; the API refuses less
_MAX_END = 256
_NAMED = 8  # candidates in an error


def whole_work(context: Context, text: str) -> str:
    """The id of the work whose id is `text` or ends in it. Raises UsageError when several end so.

    Without one it is `text` itself: the daemon refuses it in its own words. So are `whole_message` and `whole_run`.
    """
    return _whole(context, text, "/v1/works", "works", "work_id")


def whole_message(context: Context, text: str) -> str:
    """The id of the stored message whose id is `text` or ends in it; reads the whole log of the daemon."""
    return _whole(context, text, "/v1/messages", "messages", "id")


def whole_run(context: Context, text: str) -> str:
    """The id of the run of a chain whose id is `text` or ends in it."""
    return _whole(context, text, "/v1/chains/runs", "runs", "run_id")


def _whole(context: Context, text: str, path: str, key: str, field: str) -> str:
    # A generated id has its only `_` after its prefix. An artifact may be named by a URI.
    if "_" in text or "/" in text or not _MIN_END <= len(text) <= _MAX_END:
        return text
    query = [("id_end", text), *([("last", True)] if key == "messages" else [])]
    found = list(dict.fromkeys(str(row[field]) for row in gather(context, path, query, key, _NAMED + 1)[key]))
    if len(found) > 1 and text not in found:
        more = " and others" if len(found) > _NAMED else ""
        raise UsageError(
            f"{text}: is the end of several ids: {', '.join(found[:_NAMED])}{more}", "give more of its last characters"
        )
    return found[0] if len(found) == 1 else text


def last_work(context: Context, role: str | None) -> str:
    """The id of the work that was opened last, with this daemon in `role`; a note names it. Raises AnswerIsNo without one."""
    for work in gather(context, "/v1/works", [("order", "opened"), ("role", role)], "works", 1)["works"]:
        context.output.note(f"{safe(work['work_id'])} for {safe(work['target'])}: {quoted(work['text'])}")
        return str(work["work_id"])
    whose = {"initiator": " that we opened", "target": " for us"}.get(role or "", "")
    raise AnswerIsNo(f"no work{whose} is known", "`aghctl work list` shows the works", "not_found")


def gather(
    context: Context, path: str, query: list[tuple[str, object]], key: str, limit: int, before: int | None = None
) -> dict[str, Any]:
    """A list of the API with up to `limit` rows, from as many of its pages as that takes: a page may be short."""
    rows: list[dict[str, Any]] = []
    while True:
        answer = context.api.get(path, [*query, ("limit", limit - len(rows)), ("before", before)])
        rows += answer[key]
        before = answer.get("next_before")
        if before is None or len(rows) >= limit:
            return {**answer, key: rows}


def _work(context: Context, text: str | None, role: str | None) -> str:
    return last_work(context, role) if text is None else whole_work(context, text)


def work_arguments(role: str | None = None) -> tuple[Argument, Argument]:
    """The work that a command is about: an id, or --last for the latest with us in `role`."""
    which = {"initiator": " by us", "target": " for us"}.get(role or "", "")
    return (
        Argument(
            "work",
            completer=works,
            resolve=partial(_work, role=role),
            unless="--last",
            help="id of the work, or its end: at least 4 characters",
        ),
        Argument("--last", action="store_true", help=f"the work that was opened last{which}, instead of an id"),
    )
