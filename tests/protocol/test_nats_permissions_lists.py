"""The subjects that permissions cover, by the matching rules of NATS; tests/e2e tests them on a real server."""

import itertools
import json
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.delivery.acks import may_answer
from aghbus.protocol.agh.identifiers import CHANNEL, HANDLE, PEER_ID, is_workspace_id, route_token, subject_for
from aghbus.protocol.agh.nats.names import InboxUse, durable_name, inbox, is_request_inbox
from aghbus.protocol.agh.nats.permissions import Network, as_commands, as_nsc, as_server_conf, permissions, setup

PEERS = st.lists(
    st.from_regex(PEER_ID, fullmatch=True) | st.from_regex(HANDLE, fullmatch=True), min_size=2, max_size=4, unique=True
)
NETWORKS = st.builds(
    Network,
    st.text(min_size=1, max_size=12).filter(is_workspace_id),
    st.lists(st.from_regex(CHANNEL, fullmatch=True), min_size=1, max_size=3, unique=True).map(tuple),
    st.booleans(),
    st.sampled_from([None, "AGH_ARTIFACTS_V0"]),
)


def matches(pattern: str, subject: str) -> bool:
    """NATS: `*` is one token, `>` one or more at the end."""
    want, have = pattern.split("."), subject.split(".")
    for place, token in enumerate(want):
        if token == ">":
            return len(have) > place
        if place >= len(have) or token not in ("*", have[place]):
            return False
    return len(want) == len(have)


def may(allowed: list[str], subject: str) -> bool:
    return any(matches(pattern, subject) for pattern in allowed)


@given(NETWORKS, PEERS)
def test_each_peer_may_subscribe_to_its_own_subjects_only(network: Network, peers: list[str]) -> None:
    found = {one.peer_id: one for one in permissions(network, peers)}
    for us, other in itertools.permutations(peers, 2):
        for channel in network.channels:
            own, theirs = (subject_for(network.workspace_id, channel, peer) for peer in (us, other))
            everybody = subject_for(network.workspace_id, channel, None)
            assert may(found[us].subscribe, own) and may(found[us].subscribe, everybody)
            assert may(found[us].subscribe, theirs) is (route_token(us) == route_token(other))
            assert all(may(found[us].publish, subject) for subject in (own, theirs, everybody))
        if route_token(us) == route_token(other):
            continue  # two nicknames of one key
        uses: tuple[InboxUse, ...] = ("api", "pub", "deliver", "ack")
        for use in uses:
            assert may(found[us].subscribe, f"{inbox(us, use)}.1.2")
            assert not may(found[us].subscribe, f"{inbox(other, use)}.1.2")
            assert may(found[us].publish, f"{inbox(other, use)}.1.2") is (use == "ack")


@given(NETWORKS, PEERS)
def test_permissions_cover_no_subject_outside_the_network(network: Network, peers: list[str]) -> None:
    elsewhere = (
        "x",
        "$SYS.REQ.SERVER.PING",
        "$JS.API.STREAM.DELETE.AGH_NETWORK_V0",
        "$JS.API.STREAM.CREATE.AGH_NETWORK_V0",
        "$JS.API.CONSUMER.CREATE.AGH_NETWORK_V0.x",
        "$JS.API.STREAM.MSG.GET.AGH_NETWORK_V0",
        subject_for(f"{network.workspace_id}x", network.channels[0], None),
    )
    for one, subject in itertools.product(permissions(network, peers), elsewhere):
        assert not may(one.publish, subject)
        assert not may(one.subscribe, subject)


@given(NETWORKS, PEERS)
def test_only_jetstream_peers_may_use_the_jetstream_api(network: Network, peers: list[str]) -> None:
    for one in permissions(network, peers):
        name = durable_name(network.workspace_id, network.channels[0], route_token(one.peer_id))
        assert may(one.publish, f"$JS.ACK.AGH_NETWORK_V0.{name}.1.2.3.4.5") is network.jetstream
        assert may(one.publish, f"$JS.API.CONSUMER.INFO.AGH_NETWORK_V0.{name}") is network.jetstream
        assert may(one.publish, "$O.AGH_ARTIFACTS_V0.C.x") is (network.bucket is not None)


@given(NETWORKS, PEERS)
def test_names_in_the_configuration_are_distinct_identifiers(network: Network, peers: list[str]) -> None:
    found = permissions(network, peers)
    names = [one.name for one in found]
    if len({route_token(peer) for peer in peers}) == len(peers):
        assert len(set(names)) == len(names)
    lines = as_server_conf(network, found).splitlines()
    assert [line for line in lines if line.startswith("agh_")] == [f"agh_{name}: {{" for name in names]


def test_every_peer_may_publish_commit_acknowledgements() -> None:
    (one,) = permissions(Network("ws", ("c",), jetstream=False), ["ops"])
    reply = f"{inbox('worker', 'ack')}.0f3a.17"
    assert may_answer(reply)
    assert may(one.publish, reply)


@given(NETWORKS, PEERS)
def test_peers_may_answer_requests_to_services_and_reach_no_daemon_by_it(network: Network, peers: list[str]) -> None:
    for one, other in itertools.product(permissions(network, peers), peers):
        asked = [f"$SRV.INFO{name}" for name in ("", ".aghbus", f".aghbus.{route_token(other)}")]
        same = route_token(one.peer_id) == route_token(other)
        assert [may(one.subscribe, subject) for subject in asked] == [True, True, same]
        assert not any(may(one.publish, subject) for subject in asked)
        for reply in ("_INBOX.Hq1", "_INBOX.Hq1.X2-a"):
            assert is_request_inbox(reply) and may(one.publish, reply)
        for use in ("api", "pub", "deliver", "ack"):
            assert not is_request_inbox(f"{inbox(other, use)}.1")
        for reply in (
            "",
            "_INBOX",
            "_INBOX.",
            "_INBOX.a.",
            "_INBOX.*",
            "_INBOX.a.>",
            "_INBOX.a b",
            "_INBOX.a.b.c",
            "$JS.API.INFO",
        ):
            assert not is_request_inbox(reply)


def test_commands_are_quoted_for_a_shell() -> None:
    network = Network("it's;$(id)", ("c",), jetstream=True)
    found = permissions(network, ["ops"])
    for text, program in (
        (as_nsc("my 'account'", found), "nsc"),
        ("\n".join(as_commands(setup(network, ["ops"]))), "nats"),
    ):
        for command in text.replace("\\\n", " ").splitlines():
            words = shlex.split(command)
            assert words[0] == program
            printed = subprocess.run(
                ["sh", "-c", f'{program}() {{ printf "%s\\n" "$@"; }}; {command}'], capture_output=True, check=True
            ).stdout.decode()
            assert printed.splitlines() == words[1:]
    request = shlex.split(as_commands(setup(network, ["ops"]))[1])
    config = json.loads(request[3])["config"]
    assert config["filter_subjects"][1] == subject_for("it's;$(id)", "c", "ops")


def test_nsc_refuses_workspaces_with_separators() -> None:
    with pytest.raises(ValueError, match="comma"):
        as_nsc("AGH", permissions(Network("a,b", ("c",), jetstream=False), ["ops"]))
