"""`aghctl convert` (offline)."""

from __future__ import annotations

from aghbus.cli.app.arguments import channel, peer, whole, workspace
from aghbus.cli.app.errors import NO, YES
from aghbus.cli.app.findings import print_findings
from aghbus.cli.app.input import FILE, clock, lines
from aghbus.cli.context import Context
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument, Command
from aghbus.host.stdio import flush
from aghbus.protocol.base.annotations import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.cli.convert.converter import Converter, ConvertOptions
    from aghbus.protocol.formats.model import Adapter

FORMATS = ("agh", "sentient", "humaninloop", "agentos", "sacp")
"""AGH envelopes first; then the formats of aghbus.protocol.formats.registry, which is not imported to parse a command line."""


def run(context: Context, values: dict[str, Any]) -> int:
    """One result a line, with its findings; 1 when any line has an error."""
    from msgspec.structs import asdict  # slow to load

    converter = converter_of(values)
    code = YES
    for number, raw in enumerate(lines(values["file"]), 1):
        converted = converter.convert(raw)
        if converted.failed:
            code = NO
        findings = [asdict(finding) for finding in converted.findings]
        context.output.line({"messages": converted.messages, "findings": findings})
        flush()
        print_findings(context.output, "line", number, findings)
    return code


def converter_of(values: dict[str, Any]) -> Converter:
    """The converter that the options ask for. Raises UsageError."""
    from aghbus.cli.convert.converter import Converter

    settings = _settings(values)
    return Converter(settings, _adapter(values["from"], values), _adapter(values["to"], values))


def _settings(values: dict[str, Any]) -> ConvertOptions:
    from aghbus.cli.convert.converter import ConvertOptions

    _check(values)
    return ConvertOptions(
        source=values["from"],
        target_format=values["to"],
        workspace_id=values["workspace"],
        channel=values["channel"],
        now=clock(values["now"]),
        agents=dict(values["agent"]),
        peer=values["peer"],
        target=values["target"],
        work=values["work"],
    )


def _check(values: dict[str, Any]) -> None:
    from aghbus.protocol.agh.identifiers import is_emitted_work_id

    if values["peer"] is not None and values["peer"] == values["target"]:
        raise UsageError("--peer and --target: must be two different peers")
    if values["work"] is not None and not is_emitted_work_id(values["work"]):
        raise UsageError("--work: must match ^work_[a-zA-Z0-9_-]{1,64}$")
    if not values["now"] and values["now"] is not None:
        raise UsageError("--now: must be later than 0")


def _adapter(format: str, values: dict[str, Any]) -> Adapter | None:
    """The adapter of one side, with its options; None for AGH envelopes."""
    from aghbus.protocol.formats.registry import AdapterOptions, adapter_for

    match format:
        case "agh":
            return None
        case "sentient":
            from aghbus.protocol.formats.sentient.adapter import SentientOptions

            options = AdapterOptions(sentient=SentientOptions(user=values["user"]))
        case "humaninloop":
            from aghbus.protocol.formats.humaninloop.adapter import HumanInLoopOptions

            options = AdapterOptions(humaninloop=HumanInLoopOptions(feature_root=values["feature_root"]))
        case "agentos":
            from aghbus.protocol.formats.agentos.adapter import AgentOsOptions

            manifest = None if values["manifest"] is None else read_manifest(values["manifest"])
            options = AdapterOptions(agentos=AgentOsOptions(strict=values["strict"], manifest=manifest))
        case _:
            options = AdapterOptions()
    return adapter_for(format, options)


def read_manifest(path: str) -> frozenset[str]:
    """The agent ids in a file: a JSON list of strings, or one id a line. Raises UsageError."""
    import json

    try:
        with open(path, encoding="utf-8") as stream:  # noqa: PTH123 - pathlib is slow to load
            text = stream.read()
        ids = json.loads(text) if text.lstrip().startswith("[") else text.splitlines()
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--manifest: {path} cannot be read: {reason}") from None
    if not all(isinstance(one, str) for one in ids):
        raise UsageError(f"--manifest: {path} must hold a JSON list of strings, or one id a line")
    return frozenset(one.strip() for one in ids if one.strip())


def _agent(text: str) -> tuple[str, str]:
    name, equals, other = text.rpartition("=")
    if not equals or not name:
        raise ValueError("must be NAME=PEER")
    return name, peer(other)


COMMANDS = {
    "convert": Command(
        run,
        description=(
            "Convert messages between AGH envelopes (agh) and the four other formats, one message a line, without other state.\n"
            'Prints {"messages", "findings"} per line, and the findings on standard error. Missing values are filled in:\n'
            "the sender, the receiver, the work of a report. Exits 1 if any line has an error. See docs/adapters/."
        ),
        examples=[
            "aghctl convert --from sentient --to agh chain.jsonl",
            "aghctl convert --from agentos --to sacp --agent one-brain=brain --agent macro-analyst=macro - < messages.jsonl",
        ],
        arguments=[
            FILE,
            Argument("--from", choices=FORMATS, required=True, help="format of the input"),
            Argument("--to", choices=FORMATS, required=True, help="format of the output"),
            Argument("--peer", type=peer, help="sender of messages without one (default agent-a)"),
            Argument("--target", metavar="PEER", type=peer, help="receiver of messages without one (default agent-b)"),
            Argument("--workspace", type=workspace, default="ws_local", help="workspace id (default ws_local)"),
            Argument("--channel", type=channel, default="default", help="channel of the envelopes (default default)"),
            Argument("--work", metavar="ID", help="the work of all reports (default work_convert, one for each line)"),
            Argument(
                "--agent",
                metavar="NAME=PEER",
                action="append",
                type=_agent,
                help="agent and its peer; with this option, every agent must be named",
            ),
            Argument("--user", metavar="PEER", type=peer, help="sentient: peer id of `user`"),
            Argument("--strict", action="store_true", help="agentos: ids must be UUIDs of version 4"),
            Argument("--manifest", metavar="FILE", help="agentos: file with the permitted agent ids"),
            Argument("--feature-root", metavar="PATH", help="humaninloop: folder that artifact paths may begin with"),
            Argument("--now", metavar="UNIX", type=whole, help="time of submission, in Unix seconds (default: now)"),
        ],
    )
}
