"""`aghctl trust …`: the access policy of the daemon, changed while it runs, and rotation statements."""

from __future__ import annotations

import time

from aghbus.cli.app.errors import YES, AnswerIsNo
from aghbus.cli.app.input import FILE, read_all
from aghbus.cli.app.recipients import handles
from aghbus.cli.app.text import fields, indented, moment, safe, table
from aghbus.cli.commands.inbox_settle import DRY_RUN, purge_line
from aghbus.cli.context import Context, Run
from aghbus.cli.ids import whole_message
from aghbus.client.errors import RefusedByDaemon, UsageError
from aghbus.client.http import quote
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

_REMOVE = Argument("--remove", action="store_true", help="remove the rule")
_PEER = Argument("peer", help="a peer id, a handle or a key id")
_CHANNEL = Argument("--channel", help="a rule for this channel alone: WHO may open work with us there")
_TALK = Argument("--talk", action="store_true", help="with --channel: WHO may talk there, and open no work")
_UNUSED_MS = 86_400_000
"""Age of the last use from which `--unused` removes a pin of first use."""
_MAX_STATEMENT_BYTES = 65_536
_ORIGINS = {
    "configuration": "configuration",
    "operator": "aghctl trust",
    "first_use": "first use",
    "addressed": "our messages",
}


def run_list(context: Context, values: dict[str, Any]) -> int:
    """List mode and rules."""
    answer = context.api.get("/v1/trust")
    context.output.rows(answer, "rules", _human)
    return YES


def run_allow(context: Context, values: dict[str, Any]) -> int:
    """Allow a key, or a sender on one channel; raises UsageError for `--talk` alone."""
    if values["talk"] and values["channel"] is None:
        raise UsageError("--talk needs --channel")
    verb = "disallow" if values["remove"] else "allow"
    body = {"who": values["who"], "channel": values["channel"], "talk": values["talk"] or None}
    return _change(context, verb, {**body, "dry_run": values["dry_run"]})


def run_unpin(context: Context, values: dict[str, Any]) -> int:
    """Remove one pin, or all unused ones of first use; raises UsageError for both and for neither."""
    if (values["nickname"] is None) == (not values["unused"]):
        raise UsageError("one of NICKNAME and --unused is required")
    if not values["unused"]:
        return _change(context, "unpin", {"who": values["nickname"], "dry_run": values["dry_run"]})
    latest = time.time() * 1000 - _UNUSED_MS
    rules = context.api.get("/v1/trust")["rules"]
    unused = [rule for rule in rules if rule["used_ms"] is not None and rule["used_ms"] <= latest]
    body = {"dry_run": values["dry_run"]}
    removed = [context.api.post("/v1/trust/unpin", {"who": rule["subject"], **body})["rule"] for rule in unused]
    context.output.rows(
        {"removed": removed},
        "removed",
        lambda answer: "\n".join(_rule_line(rule, "unpin") for rule in answer["removed"]),
        "no pin of first use is unused for a day",
    )
    return YES


def run_why(context: Context, values: dict[str, Any]) -> int:
    """Explain the checks of a message, one by one."""
    answer = _explained(context, values["message"])
    context.output.rows(answer, "cases", lambda found: "\n\n".join(map(_case, found["cases"])))
    return YES


def _explained(context: Context, text: str) -> dict[str, Any]:
    """The cases of a message by its id, its number in the quarantine, or the end of its id, which may look like a number."""
    try:
        return context.api.get(f"/v1/trust/why/{quote(text)}")
    except RefusedByDaemon as error:
        found = text if error.code != "not_found" else whole_message(context, text)
        if found == text:
            raise
        return context.api.get(f"/v1/trust/why/{quote(found)}")


def run_check_rotation(context: Context, values: dict[str, Any]) -> int:
    """Verify a rotation statement; raises AnswerIsNo when it is invalid, or of another old key than --old."""
    from msgspec.structs import asdict

    from aghbus.protocol.agh.trust.rotation import read_rotation

    found = read_rotation(read_all(values["file"], _MAX_STATEMENT_BYTES, "FILE"))
    if found is None:
        raise AnswerIsNo(
            "this is no rotation statement, or its signature is invalid", "do not pin its new key", "invalid"
        )
    if values["old"] is not None and values["old"] != found.old_key_id:
        why = f"the statement is signed by {found.old_key_id}, not by {values['old']}"
        raise AnswerIsNo(why, "do not pin its new key", "another_key")
    context.output.answer(asdict(found), _rotation)
    return YES


def _rotation(found: dict[str, Any]) -> str:
    rows = fields(
        [
            ("nickname", found["nickname"]),
            ("old key", found["old_key_id"]),
            ("new key", found["new_key_id"]),
            ("at", moment(1000 * found["ts"])),
        ]
    )
    return f"{rows}\nThe old key has signed this. Only its owner can say whether the old key was stolen."


def _runner(verb: str, name: str, opposite: str = "") -> Run:
    """A command that makes the change `verb` to the value of argument `name`; `opposite` is the change with --remove."""

    def run(context: Context, values: dict[str, Any]) -> int:
        done = opposite if opposite and values["remove"] else verb
        code = _change(context, done, {"who": values[name], "dry_run": values["dry_run"]})
        if name == "peer" and done == verb and context.output.human:
            for handle in handles(context.api, values[name]):
                context.output.note(f"this is the peer without a key, not {safe(handle)}")
        return code

    return run


def _change(context: Context, verb: str, body: dict[str, Any]) -> int:
    answer = context.api.post(f"/v1/trust/{verb}", body)
    purged = "" if answer["purged"] is None else f"\n{purge_line(answer['purged'])}"
    context.output.answer(answer, lambda changed: _rule_line(changed["rule"], verb) + purged)
    for note in answer["notes"]:
        context.output.note(safe(note))
    if body["dry_run"]:
        context.output.note("nothing was changed: --dry-run")
    return YES


def _rule_line(rule: dict[str, Any], verb: str) -> str:
    gone = " (removed)" if verb in ("unpin", "disallow", "undeny", "unadmit") else ""
    return f"{safe(rule['rule'])} {_about(rule)}{gone}"


def _about(rule: dict[str, Any]) -> str:
    return safe(rule["who"]) if rule["subject"] is None else f"{safe(rule['subject'])}={safe(rule['who'])}"


def _human(answer: dict[str, Any]) -> str:
    head = fields(
        [
            ("peer", answer["peer_id"]),
            ("our key", answer["key_id"] or "none: messages are not signed"),
            ("mode", answer["mode"]),
            ("first use", answer["first_use"]),
        ]
    )
    if not answer["rules"]:
        return f"{head}\n\nno rules: every peer is accepted" if answer["mode"] == "verify" else head
    rows = [
        (
            rule["rule"],
            rule["subject"],
            _ORIGINS.get(rule["origin"], rule["origin"]) + ("" if rule["in_force"] else " (not active)"),
            None if rule["since_ms"] is None else moment(rule["since_ms"]),
            rule["who"],
        )
        for rule in answer["rules"]
    ]
    return f"{head}\n\n{table(['RULE', 'ABOUT', 'BY', 'SINCE', 'WHO'], rows)}"


def _case(case: dict[str, Any]) -> str:
    if case["accepted"]:
        verdict = f"taken as {case['recorded']} ({case['direction']})"
    else:
        verdict = f"refused: {case['recorded']}: {case['detail']}"
    head = fields(
        [
            ("message", case["message_id"]),
            ("from", case["sender"]),
            ("received", moment(case["received_ms"])),
            ("key", case["key_id"] or "none"),
            ("was", verdict),
            ("now decides", case["decided_by"]),
            ("note", case["note"]),
        ]
    )
    checks = "\n".join(
        f"{'yes' if check['passed'] else 'NO ':<4}{safe(check['check']):<14}{safe(check['detail'])}"
        for check in case["checks"]
    )
    return f"{head}\n{indented(checks)}" if checks else head


COMMANDS = {
    "trust list": Command(
        run_list,
        description=(
            "List the trust mode, and every rule with its origin: the configuration, `aghctl trust`,\n"
            "or the first use of a nickname (trust.first_use = pin)."
        ),
        examples=["aghctl trust list", "aghctl --name ops trust list -o json"],
    ),
    "trust admit": Command(
        _runner("admit", "peer", "unadmit"),
        description=(
            "Make a peer a contact: it gets the room of contacts (docs/limits.md), and workers take its works, those that wait\n"
            "included. `aghctl requests` lists who waits. --remove takes the admission back."
        ),
        examples=["aghctl trust admit ops@56475aa75463474c0285df5dbf2bcab7", "aghctl trust admit ops --remove"],
        arguments=[_PEER, _REMOVE, DRY_RUN],
    ),
    "trust refuse": Command(
        _runner("refuse", "peer", "undeny"),
        description=(
            "Deny a peer as `trust deny` does, and drop its unread messages: works that they opened end as rejected or canceled,\n"
            "on both sides. --remove removes the rule."
        ),
        examples=["aghctl trust refuse spammer@56475aa75463474c0285df5dbf2bcab7", "aghctl trust refuse ops"],
        arguments=[_PEER, _REMOVE, DRY_RUN],
    ),
    "trust pin": Command(
        _runner("pin", "pin"),
        description=(
            "Pin a nickname: only this key may use it, and a peer of that name without a key is refused too. A handle stands\n"
            "for its nickname and key, if the peer was observed recently."
        ),
        examples=[
            "aghctl trust pin ops=sha256:56475aa75463474c0285df5dbf2bcab73da651358839e9b77481b2eab107708c",
            "aghctl trust pin ops@56475aa75463474c0285df5dbf2bcab7",
        ],
        arguments=[Argument("pin", help="NICKNAME=KEY_ID, or a handle"), DRY_RUN],
    ),
    "trust unpin": Command(
        run_unpin,
        description=(
            "Let any key use a nickname again. With --unused, remove every pin of first use whose key was not used for a day."
        ),
        examples=["aghctl trust unpin ops", "aghctl trust unpin --unused"],
        arguments=[
            Argument("nickname", nargs="?", help="the nickname of a pin"),
            Argument("--unused", action="store_true", help="remove all pins of first use not used for a day"),
            DRY_RUN,
        ],
    ),
    "trust allow": Command(
        run_allow,
        description=(
            "Put a key on the allow list. If the list is not empty, only the verified peers on it are accepted.\n"
            "With --channel, WHO may open work with us on that channel; with --talk, only talk. If a channel has a rule of\n"
            "that kind, no other peer may. WHO is a key id or a handle, and with --channel also a plain peer id, * (everybody)\n"
            "or *@* (every verified peer)."
        ),
        examples=[
            "aghctl trust allow sha256:56475aa75463474c0285df5dbf2bcab73da651358839e9b77481b2eab107708c",
            "aghctl trust allow --channel default ops@56475aa75463474c0285df5dbf2bcab7",
            "aghctl trust allow --channel default --talk '*@*'",
            "aghctl trust allow --channel default --talk '*@*' --remove",
        ],
        arguments=[
            Argument("who", help="a key id, a handle, or with --channel a peer id, PEER/PRINCIPAL, * or *@*"),
            _CHANNEL,
            _TALK,
            _REMOVE,
            DRY_RUN,
        ],
    ),
    "trust deny": Command(
        _runner("deny", "peer", "undeny"),
        description=(
            "Refuse the messages of a peer, immediately and in open works too: of a key under any nickname, of a peer without a\n"
            "key under this name. It gets a receipt for a refusal at most once a minute. Earlier messages stay: see `trust\n"
            "refuse`. Stronger than allow and admit; --remove removes the rule."
        ),
        examples=[
            "aghctl trust deny spammer@56475aa75463474c0285df5dbf2bcab7",
            "aghctl trust deny sha256:56475aa75463474c0285df5dbf2bcab73da651358839e9b77481b2eab107708c --remove",
        ],
        arguments=[_PEER, _REMOVE, DRY_RUN],
    ),
    "trust check-rotation": Command(
        run_check_rotation,
        description=(
            "Verify the statement that `aghctl key rotate` writes: the old key has signed that the new key replaces it. With\n"
            "--old, the old key must be this one, such as the one that you have pinned. Works without a daemon; exits 1 when\n"
            "the statement is invalid."
        ),
        examples=[
            "aghctl trust check-rotation identity-56475aa75463474c0285df5dbf2bcab7.rotation.json",
            "aghctl trust check-rotation --old sha256:56475aa75463474c0285df5dbf2bcab73da651358839e9b77481b2eab107708c",
        ],
        arguments=[FILE, Argument("--old", metavar="KEY_ID", help="the key id that must have signed it")],
    ),
    "trust why": Command(
        run_why,
        description=(
            "Explain a stored or quarantined message check by check: which one decided, the key, and the rule, as they are now;\n"
            "and the decision that was recorded on arrival."
        ),
        examples=["aghctl trust why MESSAGE_ID", "aghctl trust why 17 -o json"],
        arguments=[Argument("message", help="id of the message, its end, or its number in the quarantine")],
    ),
}
