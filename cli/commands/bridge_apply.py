"""`aghctl bridge humaninloop apply`."""

from __future__ import annotations

from msgspec.structs import asdict

from aghbus.cli.app.completers import works
from aghbus.cli.app.errors import YES, AnswerIsNo, Missing
from aghbus.cli.app.input import read_all
from aghbus.cli.app.options import CHANNEL
from aghbus.cli.app.text import safe, shell, size, table
from aghbus.cli.context import Context
from aghbus.cli.ids import whole_work
from aghbus.client.api import read_object
from aghbus.client.errors import UsageError
from aghbus.client.http import iterate, quote, request
from aghbus.host.command_line import Argument, Command
from aghbus.host.file_writer import ApplyRefused, AtomicFileWriter
from aghbus.protocol.api.artifact_uri import parse_uri
from aghbus.protocol.base.annotations import Any
from aghbus.protocol.formats.attachments import MAX_MESSAGE_BYTES, fetched, reference_in
from aghbus.protocol.formats.humaninloop.files import DEFAULT_SUFFIXES, kind_faults, plan_files
from aghbus.protocol.formats.humaninloop.shape import check_output, kind_of, state_of
from aghbus.protocol.formats.model import Finding
from aghbus.protocol.formats.strict_json import check_value, read_json

FORMAT = "humaninloop"
MESSAGE = f"{FORMAT}.message"
"""The member of `ext` that carries a message of the format."""
STATES = {"retry": "failed", "escalate": "needs_input"}
"""The state of a work by the recommendation of its last output."""


def run(context: Context, values: dict[str, Any]) -> int:
    """Check the output envelope, then write its files below the root, or print what would be written."""
    if (values["work"] is None) == (values["file"] is None):
        raise UsageError("one of --work and --file is required", "--file reads an output envelope, - standard input")
    if values["work"] is not None:
        message, opening = _of_work(context, values["work"], values["channel"], values["recommendation"])
    else:
        message, opening = _of_file(values["file"]), None
    findings = _judged(message, values["recommendation"])
    plan = plan_files(message, values["feature_root"], opening)
    findings += plan.findings
    _refuse(findings)
    allowed = [name.rstrip("/") for name in values["allow"]]
    _refuse(
        tuple(kind_faults(plan, allowed)), "nothing was written; read the files, then accept each with --allow PATH"
    )
    for finding in findings:
        context.output.note(f"warning: {safe(finding.path)}: {safe(finding.message)}")
    try:
        with AtomicFileWriter(values["root"], plan.files) as application:
            application.check()
            if not values["dry_run"]:
                application.stage()
                application.commit()
    except ApplyRefused as error:
        raise AnswerIsNo(error.message, error.hint, error.code) from None
    except OSError as error:
        raise UsageError(f"--root: {values['root']}: {error.strerror}", "name a folder that exists") from None
    made = {
        "root": values["root"],
        "written": not values["dry_run"],
        "files": [file.reference() for file in plan.files],
        "findings": [asdict(finding) for finding in findings],
    }
    context.output.rows(made, "files", _human, "the output has no artifacts")
    return YES


def _of_work(context: Context, work_id: str, channel: str | None, accepted: list[str]) -> tuple[Any, Any]:
    """The output envelope that completed a work, or with an `accepted` recommendation ended it otherwise, and the input envelope
    that opened it (None if a native envelope did)."""
    detail = context.api.get(f"/v1/works/{quote(work_id)}", [("channel", channel)])
    work = detail["work"]
    state = work["state"]
    if state not in ("completed", *(STATES[one] for one in accepted)):
        raise AnswerIsNo(
            f"work {work_id} is {state}: only a completed work's artifacts are applied",
            context.command(f"work watch {shell(work_id)}") + " waits for its end",
            "not_completed",
        )
    steps = (step for step in reversed(detail["history"]) if step["event"] == f"trace:{state}")
    if (ended := next(steps, None)) is None:
        raise AnswerIsNo(f"work {work_id} is {state} without an output of its agent", "", "no_artifacts")
    trace = _stored(context, work, ended["seq"] - 1, id=ended["id"], sender=work["target"], kind="trace")
    if trace is None:
        raise Missing(f"the trace that made the work {state} is not stored any more")
    return _output(context, trace), _opening(context, work, detail["history"])


def _stored(context: Context, work: dict[str, Any], since: int, **wanted: Any) -> dict[str, Any] | None:
    """The work's first envelope after `since`, which must be the `wanted` one; else None.

    Never by its id alone: that is the sender's choice, and another peer may choose the same.
    """
    query = [
        ("since", since),
        ("work", work["work_id"]),
        ("channel", work["channel"]),
        ("kind", [wanted["kind"]]),
        ("direction", ["in", "out"]),
        ("limit", 1),
    ]
    found = context.api.get("/v1/messages", query)["messages"]
    held = [message for message in found if all(message[name] == value for name, value in wanted.items())]
    return held[0]["envelope"] if held else None


def _output(context: Context, trace: dict[str, Any]) -> Any:
    """The message of a completing trace: the one that it carries, else the artifacts that its result holds uncut."""
    message = _carried(context, trace)
    if message is None:
        body = trace["body"]
        result = body.get("result")
        if not isinstance(result, dict) or not isinstance(result.get("artifacts"), list):
            raise AnswerIsNo(
                "the work ended with a trace that carries no output envelope and no artifacts in its result",
                context.command(f"work show {shell(trace['work_id'])}") + " shows what it has",
                "no_artifacts",
            )
        message = {
            "success": body["state"] == "completed",
            "summary": body.get("message") or "",
            "artifacts": result["artifacts"],
            "recommendation": next((name for name, state in STATES.items() if state == body["state"]), "proceed"),
        }
    _refuse(check_value(message))
    return message


def _opening(context: Context, work: dict[str, Any], history: list[dict[str, Any]]) -> Any:
    """The input envelope of the opening; None when there is none: then only --feature-root says what paths are relative to."""
    since = next(
        (step["seq"] - 1 for step in history if step["outcome"] == "opened"), 0
    )  # a long history lacks its beginning
    envelope = _stored(
        context, work, since, id=work["opening_id"], sender=work["initiator"], kind="say", outcome="opened"
    )
    return None if envelope is None else _carried(context, envelope)


def _carried(context: Context, envelope: dict[str, Any]) -> Any | None:
    """The message that an envelope carries, fetched when it was too large to ride along; None when it carries none."""
    ext = envelope.get("ext") or {}
    reference = None if MESSAGE in ext else reference_in(FORMAT, ext)
    if reference is None:
        return ext.get(MESSAGE)
    if isinstance(reference, Finding):
        raise AnswerIsNo(reference.message, "", reference.rule)
    where = parse_uri(reference.uri)
    if where is None:
        raise AnswerIsNo("the reference to the carried message names no artifact", "", "message_ref")
    message, faults = fetched(reference, _fetch(context, *where))
    if faults:
        raise AnswerIsNo(faults[0].message, "", faults[0].rule)
    return message


def _fetch(context: Context, work_id: str, name: str) -> bytes:
    where = f"/v1/artifacts/{quote(work_id)}/{quote(name)}"
    response = request(context.api.endpoint, "GET", where, (), {}, context.timeout)
    held = bytearray()
    try:
        if response.status != 200:
            read_object(response)
        for piece in iterate(response.pieces()):
            held += piece
            if len(held) > MAX_MESSAGE_BYTES:
                break  # longer than any reference may say: its digest will not hold
    finally:
        response.close()
    return bytes(held)


def _of_file(path: str) -> Any:
    message, faults = read_json(read_all(path, MAX_MESSAGE_BYTES, "--file"))
    _refuse(faults)
    return message


def _judged(message: Any, accepted: list[str]) -> tuple[Finding, ...]:
    """The findings of a message that must be the output envelope of a success, or have an `accepted` recommendation; AnswerIsNo
    for any error."""
    kind = kind_of(message)
    if isinstance(kind, Finding):
        _refuse((kind,))
    if kind != "output":
        raise AnswerIsNo("this is an input envelope: only outputs have artifacts", "", "not_an_output")
    findings = check_output(message)
    _refuse(findings)
    if state_of(message) != "completed" and message["recommendation"] not in accepted:
        raise AnswerIsNo(
            f"the output says success {str(message['success']).lower()}, {message['recommendation']}: nothing is applied",
            "only (true, proceed) is a completed work; see --recommendation",
            "not_completed",
        )
    return findings


def _refuse(findings: tuple[Finding, ...], hint: str = "nothing was written") -> None:
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        said = "; ".join(f"{finding.path or '(whole)'}: {finding.message} ({finding.rule})" for finding in errors[:5])
        more = f"; and {len(errors) - 5} more" if len(errors) > 5 else ""
        raise AnswerIsNo(f"the output breaks rules: {said}{more}", hint, errors[0].rule)


def _human(made: dict[str, Any]) -> str:
    verbs = {"create": "created", "update": "updated"} if made["written"] else {"create": "create", "update": "update"}
    return table(
        ["FILE", "SIZE", "OPERATION"],
        [(file["path"], size(file["size"]), verbs[file["operation"]]) for file in made["files"]],
    )


COMMANDS = {
    "bridge humaninloop apply": Command(
        run,
        description=(
            "Write the artifacts of a completed work below a feature root, all or nothing. Paths are relative, without `..`;\n"
            "no symbolic link below the root is followed; `create` never overwrites, `update` needs the file. No written\n"
            "file is executable, no folder becomes a Git repository. Without --allow only files are written that no tool runs\n"
            f"or loads by itself ({', '.join(DEFAULT_SUFFIXES)}). Exits 1, with nothing changed, when any file is refused."
        ),
        examples=[
            "aghctl bridge humaninloop apply --work WORK_ID --root specs/005-user-auth --dry-run",
            "aghctl bridge humaninloop apply --work WORK_ID --root specs/005-user-auth -o json",
            "aghctl bridge humaninloop apply --file output.json --root specs/005-user-auth --feature-root specs/005-user-auth/",
        ],
        arguments=[
            Argument(
                "--work",
                metavar="ID",
                completer=works,
                resolve=whole_work,
                help="completed work whose artifacts are written",
            ),
            Argument("--file", help="output envelope to use instead, without a daemon; - reads standard input"),
            Argument("--root", metavar="DIR", required=True, help="existing folder that the paths are relative to"),
            Argument("--feature-root", metavar="PREFIX", help="prefix to strip from paths if the opening names none"),
            Argument(
                "--recommendation",
                choices=tuple(STATES),
                action="append",
                help="also apply an output with this recommendation (default: only those of completed works)",
            ),
            Argument("--allow", metavar="PATH", action="append", help="file to accept, or folder with all below it"),
            Argument("--dry-run", action="store_true", help="check everything, write nothing"),
            CHANNEL,
        ],
    )
}
