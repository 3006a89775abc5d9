"""`aghctl nats permissions`."""

from __future__ import annotations

from aghbus.cli.app.arguments import channel, peer, workspace
from aghbus.cli.app.errors import YES
from aghbus.cli.context import Context
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.protocol.agh.nats.permissions import Network

FORMATS = ("server-conf", "nsc", "json")


def run(context: Context, values: dict[str, Any]) -> int:
    """Print the permissions of each peer's user, in one of the three forms."""
    from aghbus.protocol.agh.nats import permissions as rules

    network, peers = _asked(context, values)
    found = rules.permissions(network, peers)
    if values["leaf"]:
        found, peers = [rules.leaf_permissions(values["leaf"], found)], []
    for direction in dict.fromkeys(values["synadia"]):
        from aghbus.protocol.formats.synadia.permissions import permissions

        found.append(rules.PeerPermissions("", f"synadia_{direction}", *permissions(direction)))
    form = values["format"] or ("server-conf" if context.output.human else "json")
    if form == "json":
        from aghbus.cli.app.output import dumps

        context.output.text(dumps(rules.as_document(network, found), pretty=context.output.form != "jsonl"))
        return YES
    try:
        text = rules.as_server_conf(network, found) if form == "server-conf" else rules.as_nsc(values["account"], found)
    except ValueError as error:
        raise UsageError(f"--format nsc: {error}") from None
    steps = rules.as_commands(rules.setup(network, peers))
    if steps:
        note = "# Once, as a user without these limits; again for each peer that is added:"
        text += "\n\n" + "\n".join([note, *(f"#   {step}" for step in steps)])
    context.output.text(text)
    return YES


def _asked(context: Context, values: dict[str, Any]) -> tuple[Network, list[str]]:
    """The network and the peers, from the options, and otherwise from our own daemon."""
    from aghbus.protocol.agh.nats.names import BUCKET
    from aghbus.protocol.agh.nats.permissions import Network

    peers = list(dict.fromkeys(values["peer"]))
    workspace, channels = values["workspace"] or "ws_local", values["channel"] or ["default"]
    if not peers:
        status = context.api.get("/v1/status")
        peers = [status["peer_id"]]
        workspace, channels = values["workspace"] or status["workspace_id"], values["channel"] or status["channels"]
    bucket = (values["bucket"] or BUCKET) if values["artifacts"] or values["bucket"] else None
    jetstream = values["durability"] == "jetstream"
    return Network(workspace, tuple(dict.fromkeys(channels)), jetstream, bucket, values["replicas"]), peers


def _leaf(text: str) -> str:
    if not (0 < len(text) <= 64 and text.isascii() and text.replace("_", "").isalnum() and text == text.lower()):
        raise ValueError("must be 1 to 64 characters of a-z, 0-9 and '_'")
    return text


def _replicas(text: str) -> int:
    if text not in ("1", "2", "3", "4", "5"):
        raise ValueError("must be 1 to 5")
    return int(text)


def _bucket(text: str) -> str:
    if not (0 < len(text) <= 64 and text.isascii() and text.replace("_", "").replace("-", "").isalnum()):
        raise ValueError("must be 1 to 64 characters of a-z, A-Z, 0-9, '_' and '-'")
    return text


COMMANDS = {
    "nats permissions": Command(
        run,
        description=(
            "Print the permissions that the NATS user of each peer needs: the subjects of the binding and nothing else.\n"
            "Without --peer, those of our own daemon. docs/security/broker.md describes what they prevent, and what not."
        ),
        examples=[
            "aghctl nats permissions --peer ops --peer patch-worker > permissions.conf",
            "aghctl nats permissions --peer ops --durability jetstream --artifacts --replicas 3 --format json",
            "aghctl nats permissions --peer laptop --peer desk --leaf office > office.conf",
            "aghctl nats permissions --peer ops --format nsc | sh",
        ],
        arguments=[
            Argument("--peer", metavar="ID", action="append", type=peer, help="peer or handle (default: our daemon's)"),
            Argument("--workspace", type=workspace, help="workspace id (default: ws_local, or our daemon's)"),
            Argument("--channel", action="append", type=channel, help="channel (default: default, or our daemon's)"),
            Argument("--durability", choices=("core", "jetstream"), help="how the peers' daemons run (default core)"),
            Argument("--artifacts", action="store_true", help="include the object store of artifacts"),
            Argument("--bucket", metavar="NAME", type=_bucket, help="its name (AGH_ARTIFACTS_V0); means --artifacts"),
            Argument(
                "--leaf",
                metavar="NAME",
                type=_leaf,
                help="one user NAME instead, for a leaf node that has the peers behind it",
            ),
            Argument(
                "--synadia",
                action="append",
                choices=("serve", "join"),
                help="also a user for `aghctl bridge synadia` in this direction (docs/adapters/synadia.md)",
            ),
            Argument(
                "--replicas",
                metavar="N",
                type=_replicas,
                default=1,
                help="servers that keep stream and bucket, in the requests for the operator (default 1)",
            ),
            Argument("--account", metavar="NAME", default="AGH", help="account of the users (with --format nsc)"),
            Argument("--format", choices=FORMATS, help="form of the answer (default server-conf, with -o json: json)"),
        ],
    )
}
