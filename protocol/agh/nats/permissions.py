"""Permissions of a peer on a NATS server: the binding's subjects and nothing else (spec section 7).

The lists name allowed subjects, so that all others are refused. docs/security/broker.md describes their limits.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from aghbus.protocol.agh.identifiers import route_token, subject_root
from aghbus.protocol.agh.nats.jetstream import (
    ACK_WAIT,
    BUCKET_AGE,
    BUCKET_BYTES,
    MAX_IN_FLIGHT,
    PROVISIONED,
    STREAM_AGE,
    STREAM_BYTES,
    bucket_config,
    consumer_config,
    stream_config,
)
from aghbus.protocol.agh.nats.names import (
    INBOX_PREFIX,
    STREAM,
    durable_name,
    own_subjects,
    service_subjects,
)
from aghbus.protocol.agh.nats.names import (
    JETSTREAM_API as API,
)


class Network(msgspec.Struct, frozen=True):
    """The part of the network that permissions are for; `bucket` is the object store of artifacts, None without any. `replicas` is
    the number of servers that keep stream and bucket."""

    workspace_id: str
    channels: tuple[str, ...]
    jetstream: bool
    bucket: str | None = None
    replicas: int = 1


class PeerPermissions(msgspec.Struct, frozen=True):
    """Subjects that one peer's user may publish and subscribe to; `name` is a word for it, distinct among its peers.

    `peer_id` is empty for what is no peer: a leaf node, a gateway.
    """

    peer_id: str
    name: str
    publish: list[str]
    subscribe: list[str]


class Setup(msgspec.Struct, frozen=True):
    """One request to JetStream's API that an operator's user sends once, since the peers may not."""

    subject: str
    payload: dict[str, Any]


def permissions(network: Network, peers: Sequence[str]) -> list[PeerPermissions]:
    """Those of each of `peers`, in order."""
    names = _names(peers)
    return [
        PeerPermissions(peer, name, _publish(network, peer), _subscribe(network, peer))
        for peer, name in zip(peers, names, strict=True)
    ]


def leaf_permissions(name: str, found: Sequence[PeerPermissions]) -> PeerPermissions:
    """Those of the user of a leaf node, behind which are the peers of `found`: all of theirs."""
    publish, subscribe = (
        list(dict.fromkeys(subject for subjects in lists for subject in subjects))
        for lists in ([one.publish for one in found], [one.subscribe for one in found])
    )
    return PeerPermissions("", name, publish, subscribe)


def setup(network: Network, peers: Sequence[str]) -> list[Setup]:
    """Objects that must exist before peers with these permissions start: stream, bucket, and their consumers.

    A user who may create consumers may read every message of the stream through one, so that peers may not.
    """
    found: list[Setup] = []
    if network.jetstream:
        config = stream_config(
            discard="new", max_age=STREAM_AGE, max_bytes=STREAM_BYTES, replicas=network.replicas, expires=True
        )
        found.append(Setup(f"{API}.STREAM.CREATE.{STREAM}", config))
        found += [_consumer(network.workspace_id, channel, peer) for peer in peers for channel in network.channels]
    if network.bucket is not None:
        config = bucket_config(
            network.bucket, max_age=BUCKET_AGE, max_bytes=BUCKET_BYTES, replicas=network.replicas, append_only=True
        )
        found.append(Setup(f"{API}.STREAM.CREATE.OBJ_{network.bucket}", config))
    return found


def _consumer(workspace_id: str, channel: str, peer: str) -> Setup:
    name = durable_name(workspace_id, channel, route_token(peer))
    config = consumer_config(
        name,
        filters=own_subjects(peer, workspace_id, channel),
        ack_wait=ACK_WAIT,
        max_in_flight=MAX_IN_FLIGHT,
    )
    config |= {"deliver_policy": "new", "description": PROVISIONED}
    payload = {"stream_name": STREAM, "config": config, "action": "create"}
    return Setup(f"{API}.CONSUMER.CREATE.{STREAM}.{name}", payload)


def _publish(network: Network, peer: str) -> list[str]:
    roots = [subject_root(network.workspace_id, channel) for channel in network.channels]
    found = [subject for root in roots for subject in (f"{root}.broadcast", f"{root}.peer.*")]
    found.append(f"{INBOX_PREFIX}.*.ack.>")  # commit acknowledgements; no other inbox of another peer
    found += [
        f"{INBOX_PREFIX}.*",
        f"{INBOX_PREFIX}.*.*",
    ]  # answers to `nats micro`; inboxes of daemons have more tokens
    if network.jetstream:
        found += [f"{API}.INFO", f"{API}.STREAM.INFO.{STREAM}", f"{API}.CONSUMER.INFO.{STREAM}.*"]
        for channel in network.channels:
            name = durable_name(network.workspace_id, channel, route_token(peer))
            found += [f"{API}.CONSUMER.MSG.NEXT.{STREAM}.{name}", f"$JS.ACK.{STREAM}.{name}.>"]
    if network.bucket is not None:
        stream = f"OBJ_{network.bucket}"
        found += [f"{API}.{what}.{stream}" for what in ("STREAM.INFO", "DIRECT.GET")]
        found += [f"$O.{network.bucket}.C.*", f"$O.{network.bucket}.M.*"]
    return found


def _subscribe(network: Network, peer: str) -> list[str]:
    found = [subject for channel in network.channels for subject in own_subjects(peer, network.workspace_id, channel)]
    return [*found, f"{INBOX_PREFIX}.{route_token(peer)}.>", *service_subjects(peer)]


def _names(peers: Sequence[str]) -> list[str]:
    """Words for configuration files, as short as they can be and still differ."""
    plain = [re.sub(r"[^a-z0-9]", "_", peer.partition("@")[0]) for peer in peers]
    return [
        name if plain.count(name) == 1 else f"{name}_{route_token(peer)}"
        for peer, name in zip(peers, plain, strict=True)
    ]


# forms


def as_server_conf(network: Network, found: Sequence[PeerPermissions]) -> str:
    """Definitions for nats-server's configuration file, to be named by its users as `permissions: $agh_NAME`."""
    lines = [
        f"# Permissions of AGH Network v0 in the workspace {_quoted(network.workspace_id)}; docs/security/broker.md.",
        '# A user names its own: {user: ops, password: "...", permissions: $agh_ops}',
    ]
    for one in found:
        lines += ["", f"# {one.peer_id or one.name}", f"agh_{one.name}: {{"]
        for verb, subjects in (("publish", one.publish), ("subscribe", one.subscribe)):
            lines += [f"  {verb}: {{ allow: [", *(f"    {_quoted(subject)}" for subject in subjects), "  ] }"]
        lines.append("}")
    return "\n".join(lines)


def as_nsc(account: str, found: Sequence[PeerPermissions]) -> str:
    """Commands for the `nsc` tool, one user for each peer. Raises ValueError for subjects that its lists cannot hold."""
    lines = []
    for one in found:
        if any(set(subject) & set(',"') for subject in (*one.publish, *one.subscribe)):
            raise ValueError("nsc separates subjects by commas: a workspace with a comma or a quote needs another form")
        lines.append(f"nsc add user --account {_shell(account)} --name {_shell(one.peer_id or one.name)} \\")
        lines += [f"  --allow-pub {_shell(subject)} \\" for subject in one.publish]
        lines += [f"  --allow-sub {_shell(subject)} \\" for subject in one.subscribe]
        lines[-1] = lines[-1].removesuffix(" \\")
    return "\n".join(lines)


def as_document(network: Network, found: Sequence[PeerPermissions]) -> dict[str, Any]:
    """Everything as one JSON object, with `pub` and `sub` as a user's JWT has them."""
    peers = [one.peer_id for one in found if one.peer_id]
    return {
        "workspace_id": network.workspace_id,
        "channels": list(network.channels),
        "durability": "jetstream" if network.jetstream else "core",
        "bucket": network.bucket,
        "peers": [
            {
                "peer_id": one.peer_id,
                "route_token": route_token(one.peer_id) if one.peer_id else "",
                "name": one.name,
                "pub": {"allow": one.publish},
                "sub": {"allow": one.subscribe},
            }
            for one in found
        ],
        "setup": [{"subject": step.subject, "payload": step.payload} for step in setup(network, peers)],
    }


def as_commands(steps: Sequence[Setup]) -> list[str]:
    """The setup as commands of the `nats` tool."""
    return [f"nats req {_shell(step.subject)} {_shell(json.dumps(step.payload))}" for step in steps]


def _quoted(text: str) -> str:
    """A string of nats-server's configuration language."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _shell(text: str) -> str:
    """One word of a shell command."""
    return "'" + text.replace("'", "'\\''") + "'"
