"""`aghctl whois`."""

from __future__ import annotations

from aghbus.cli.app.arguments import peer, seconds
from aghbus.cli.app.completers import capabilities, peers
from aghbus.cli.app.errors import YES, AnswerIsNo
from aghbus.cli.app.options import CHANNEL
from aghbus.cli.app.recipients import handles
from aghbus.cli.app.text import fields, indented, safe
from aghbus.cli.context import Context
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

ONCE = 1.5
"""Seconds that a question is open which is asked once."""


def run(context: Context, values: dict[str, Any]) -> int:
    """Ask, and print every answer; raises AnswerIsNo when there is none."""
    body = request_body(values)
    answer = ask(context, body)
    if answer["peers"] or not context.output.human:
        context.output.rows(answer, "peers", _human)
    if answer["peers"]:
        return YES
    if answer["ended"] == "limited":
        limiting = values["to"] or values["query"] or "a peer"
        raise AnswerIsNo(f"{limiting} limits how often it answers", "try again in a minute, and ask it less often")
    raise AnswerIsNo(f"no peer answered {_asked(values)} within {answer['elapsed_ms'] / 1000:.1f} s", _hint(values))


def ask(context: Context, body: dict[str, Any]) -> dict[str, Any]:
    """The response to one question (`WhoisResponse`); if nobody answers, that of known peers with a key and this nickname."""
    nickname = body["to"] or body["query"]
    if body["wait"] and nickname and (found := _ask_handles(context, {**body, "wait": None}, nickname)):
        return found
    answer: dict[str, Any] = context.api.post("/v1/whois", body, wait=body["wait"] or ONCE)
    if answer["peers"] or not nickname:
        return answer
    return _ask_handles(context, {**body, "wait": None}, nickname) or answer


def _ask_handles(context: Context, body: dict[str, Any], nickname: str) -> dict[str, Any] | None:
    """The answers of the peers with a key that are called `nickname`; None if none is known here."""
    asked = [{**body, "query": "", "to": handle} for handle in handles(context.api, nickname)]
    answers = [context.api.post("/v1/whois", one, wait=one["wait"] or ONCE) for one in asked]
    found = [peer for answer in answers for peer in answer["peers"]]
    return {**answers[0], "query": body["query"], "peers": found} if found else None


def request_body(values: dict[str, Any]) -> dict[str, Any]:
    """The request body (`WhoisRequest`)."""
    kept = {name: values[name] for name in ("to", "channel", "first", "catalog", "wait")}
    return {"query": values["query"] or "", **kept}


def _asked(values: dict[str, Any]) -> str:
    asked = f"whois {values['query']}" if values["query"] else "whois"
    return f"{asked} to {values['to']}" if values["to"] else asked


def _hint(values: dict[str, Any]) -> str:
    if values["query"]:
        return (
            "a query matches a whole peer id, nickname, name or capability; `aghctl whois` without one asks every peer"
        )
    return "is another daemon running on the same broker, workspace and channel? See `aghctl peers` and `aghctl doctor`"


def _human(answer: dict[str, Any]) -> str:
    return "\n".join(_found(found) for found in answer["peers"])


def _found(found: dict[str, Any]) -> str:
    card = found["card"]
    brief = (card.get("ext") or {}).get("agh.capabilities_brief")
    head = f"{safe(found['peer_id'])}  {safe(found['trust'])}, answered in {found['rtt_ms']:.0f} ms"
    lines = [
        ("name", card.get("display_name")),
        ("summary", found["summary"]),
        ("capabilities", None if brief else _joined(card.get("capabilities"))),
        ("profiles", _joined(card.get("profiles_supported"))),
        ("artifacts", _joined(card.get("artifacts_supported"))),
        ("trust modes", _joined(card.get("trust_modes_supported"))),
    ]
    parts = [head, indented(fields(lines))]
    for entry in found["capabilities"] or brief or ():
        if isinstance(entry, dict):
            parts.append(indented(_capability(entry)))
    return "\n".join(part for part in parts if part.strip())


def _capability(entry: dict[str, Any]) -> str:
    digest = f"  {safe(entry['digest'])}" if entry.get("digest") else ""
    return f"can {safe(entry.get('id'))}: {safe(entry.get('summary'))}{digest}"


def _joined(entries: object) -> str:
    return ", ".join(map(str, entries)) if isinstance(entries, list) else ""


COMMANDS = {
    "whois": Command(
        run,
        description=(
            "Ask the network for peers by QUERY: a peer id, a nickname, a display name, a capability, a profile, an artifact\n"
            "type or a trust mode, each in full. Without QUERY every peer answers. Returns when the answers are complete, or\n"
            "after 1.5 s; with --wait the question is repeated until a peer answers. Exits 1 if none does."
        ),
        examples=["aghctl whois test.run", "aghctl whois --first -o json", "aghctl whois --to patch-worker --catalog"],
        arguments=[
            Argument("query", nargs="?", completer=capabilities, help="what to match exactly"),
            Argument(
                "--to", metavar="PEER", type=peer, completer=peers, help="ask only this peer, which answers any query"
            ),
            Argument(
                "--wait",
                metavar="TIME",
                type=seconds,
                help="ask again for this long until a peer answers (default: once)",
            ),
            Argument("--first", action="store_true", help="return at the first answer"),
            Argument("--catalog", action="store_true", help="ask for full capability records with their digests"),
            CHANNEL,
        ],
    )
}
