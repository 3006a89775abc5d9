"""Messages, works and events in one line or a few, for people. Every string is escaped here."""

from __future__ import annotations

from aghbus.cli.app.text import (
    State,
    compact,
    cut,
    fields,
    indented,
    local_times,
    moment,
    painted,
    quoted,
    readable,
    safe,
    size,
)
from aghbus.protocol.base.annotations import Any

OVERVIEW_CHARACTERS = 500
"""Characters of a text in one line of a list or a stream. An envelope may carry a megabyte; `messages show` prints all of it."""
TERMINAL = frozenset(["completed", "failed", "canceled"])
"""States that a work never leaves (specification, section 6)."""


def body_line(kind: str, body: dict[str, Any]) -> str:
    """The content of an envelope in one line: `trace working “half done”`."""
    parts = [safe(kind)]
    if kind == "say":
        parts += [_words(body.get("text")), _count("artifact", body.get("artifacts"))]
    elif kind == "capability":
        record = body.get("capability")
        parts += [safe(record.get("id")), _words(record.get("summary"))] if isinstance(record, dict) else []
    elif kind == "receipt":
        parts += [safe(body.get("status")), _reason(body.get("reason_code")), _words(body.get("detail"))]
    elif kind == "trace":
        parts += [safe(body.get("state")), _words(body.get("message")), _result(body.get("result"))]
        parts.append(_count("artifact", body.get("artifact_refs")))
    else:
        parts += [safe(body.get("type") or ""), _words(body.get("query"))]
    return " ".join(part for part in parts if part)


def not_delivered(message: dict[str, Any]) -> str | None:
    """Why a message that we sent was not delivered: `expired: no answer before it expired`; None unless it failed."""
    if message["direction"] != "out" or message["delivery"] not in ("refused", "expired", "dead"):
        return None
    return safe(": ".join(part for part in (message["delivery"], message["delivery_detail"]) if part))


def message_line(message: dict[str, Any]) -> str:
    """One stored envelope: time, sequence, sender, receiver, trust, work or container, and content."""
    body = message["envelope"].get("body")
    where = message["work_id"] or message["thread_id"] or message["direct_id"]
    parts = [
        moment(message["received_ms"]),
        f"#{message['seq']}",
        f"{safe(message['sender'])} → {safe(message['to'] or 'all')}",
        safe(message["trust"]),
        safe(where) if where else "",
        "(DAMAGED)" if message.get("damaged") else body_line(message["kind"], body if isinstance(body, dict) else {}),
    ]
    if (why := not_delivered(message)) is not None:
        parts.append(f"(not delivered: {why})")
    return "  ".join(part for part in parts if part)


def event_line(event: dict[str, Any]) -> str:
    """One event of the stream: its message and, in brackets, its effect on the work."""
    if event["type"] == "gap" or not event.get("message"):
        return f"(gap: everything up to #{event['seq']} was removed by retention)"
    line = message_line(event["message"])
    change = event.get("work")
    if not change:
        return line
    after = painted(change["after"])
    if change["outcome"] in ("opened", "advanced"):
        return f"{line}  [{after}]" if change["before"] == change["after"] else f"{line}  [→ {after}]"
    why = f", {safe(change['reason'])}" if change.get("reason") else ""
    return f"{line}  [{safe(change['outcome'])}{why}]"


def sent_line(sent: dict[str, Any]) -> str:
    """The result of a send: `sent to ops in thread_… (msg_…, queued)`."""
    to = safe(sent["to"] or "everybody in the channel")
    where = safe(sent["thread_id"] or sent["direct_id"])
    return f"sent to {to} in {where} ({safe(sent['id'])}, {safe(sent['state'])})"


def reason_line(why: dict[str, Any]) -> str:
    """Why a work does not move (`WaitReason`), in one sentence."""
    said = f": {quoted(why['said'])}" if why["said"] else ""
    return local_times(safe(why["text"])) + said


def work_head(work: dict[str, Any], why: dict[str, Any] | None = None, cause: str = "") -> str:
    """Parties, state and result of a work as labelled lines; `why` it does not move, and what its opening names as its `cause`."""
    head = fields(
        [
            ("work", work["work_id"]),
            ("state", State(work["state"])),
            ("why", reason_line(why) if why else None),
            ("hint", why["hint"] if why else None),
            ("from", work["initiator"]),
            ("for", work["target"]),
            ("caused by", cause),
            ("our role", work["role"]),
            ("in", work["thread_id"] or work["direct_id"]),
            ("channel", f"{work['workspace_id']}/{work['channel']}"),
            ("trust", work["trust"]),
            ("opened", moment(work["opened_ms"])),
            ("changed", moment(work["updated_ms"])),
            ("text", work["text"]),
            ("message", work["message"]),
        ]
    )
    return head if work["result"] is None else f"{head}\nresult\n{indented(readable(work['result']))}"


def artifact(entry: object) -> str:
    """A reference to an artifact: its name, size and URI, or its JSON where it has neither name nor URI."""
    known = entry if isinstance(entry, dict) else {}
    octets = known.get("size")
    named = [safe(known[key]) for key in ("name", "uri") if isinstance(known.get(key), str)]
    if not named:
        return cut(compact(entry), OVERVIEW_CHARACTERS)
    return "  ".join(named[:-1] + ([size(octets)] if isinstance(octets, int) else []) + named[-1:])


def _words(text: object) -> str:
    if not isinstance(text, str) or len(text) <= OVERVIEW_CHARACTERS:
        return quoted(text)
    return f"“{safe(text[:OVERVIEW_CHARACTERS])}…” ({len(text)} characters)"


def _reason(code: object) -> str:
    return f"({safe(code)})" if code else ""


def _result(result: object) -> str:
    return f"result {cut(compact(result), OVERVIEW_CHARACTERS)}" if result is not None else ""


def _count(noun: str, entries: object) -> str:
    if not isinstance(entries, list) or not entries:
        return ""
    return f"[{len(entries)} {noun}{'s' if len(entries) > 1 else ''}]"
