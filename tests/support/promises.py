"""What daemons promise of delivery (docs/delivery.md), judged of a net of daemons that has come to rest."""

from collections import Counter, defaultdict
from typing import Any, Final

from aghbus.protocol.agh.envelope import DISCOVERY_KINDS
from tests.support.daemon_net import Daemon, DaemonNet
from tests.support.delivery_net import NAMES, differ
from tests.support.peers import Peer

_SENT: Final = """
SELECT e.msg_id, e.kind, e.work_id, o.state, i.seq FROM envelopes AS e
JOIN outbox AS o ON o.seq = e.seq LEFT JOIN inbox AS i ON i.seq = e.seq WHERE e.direction = 'out' ORDER BY e.seq
"""
_TAKEN: Final = """
SELECT msg_id, container, coalesce(outcome, '') NOT IN ('ignored', 'rejected') FROM envelopes
WHERE direction = 'in' ORDER BY seq
"""


def broken_promises(net: DaemonNet) -> set[str]:
    """What is not as promised of a net at rest."""
    found = {"agent: out of order"} if net.overtaken else set()
    if net.unsettled():
        found.add("does not come to rest")
    told: dict[str, set[str]] = {}
    for daemon in net.daemons:
        there = net.peers[net.other(daemon.name)]
        taken = _taken(there)
        found |= _wrong_states(net, daemon, {row[0]: bool(row[2]) for row in taken}, told)
        if isinstance(there, Peer):
            found |= _withheld(daemon, there)
        numbers = {row[0]: number for number, row in enumerate(daemon.rows(_SENT))}
        flows = defaultdict(list)
        for message_id, container, _ in taken:
            if message_id in numbers:  # else a receipt that is sent once and not stored
                flows[container].append(numbers[message_id])
        if any(flow != sorted(flow) for flow in flows.values()):
            found.add("out of order")
        if any(times > 1 for times in Counter(row[0] for row in taken).values()):
            found.add("taken twice")
    return found | _work_faults(net, told)


def _withheld(daemon: Daemon, foreign: Peer) -> set[str]:
    taken = {row[0] for row in _taken(daemon)}
    sent = {one.id for one in foreign.outbox.values() if one.kind not in DISCOVERY_KINDS}
    return {"withheld"} if sent - taken else set()


def _taken(peer: Any) -> list[tuple[Any, ...]]:
    if isinstance(peer, Daemon):
        return peer.rows(_TAKEN)
    stored = [envelope for direction, envelope in peer.stored if direction == "in"]
    return [(one.id, one.container, peer.verdicts[one.id].outcome == "committed") for one in stored]


def _wrong_states(net: DaemonNet, daemon: Daemon, effect: dict[str, bool], told: dict[str, set[str]]) -> set[str]:
    """Of messages whose state is not true, and of agents that were not told what became of theirs."""
    found: set[str] = set()
    for message_id, kind, work_id, state, notice in daemon.rows(_SENT):
        if state == "receipted" and not effect.get(message_id):
            found.add("receipted without effect")
        if state == "published" and message_id in net.to_nobody:
            found.add("published to nobody")
        if state == "refused" and effect.get(message_id):
            found.add("refused with effect")
        by_agent = message_id in net.by_agents
        if state in ("refused", "expired", "dead") and by_agent and notice is None:
            found.add(f"agent was not told of its {kind}")
        if notice is not None:
            told.setdefault(work_id, set()).add(daemon.name)
    return found


def _work_faults(net: DaemonNet, told: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ours, theirs = ({one.work_id: one for one in net.peers[name].works.values()} for name in NAMES)
    for key in ours.keys() | theirs.keys():
        one, other = ours.get(key), theirs.get(key)
        if one is None or other is None:
            work = one or other
            if work is None or work.initiator == ("worker" if one is None else "ops"):
                continue
            found.add("phantom work")
        elif one.opening_id != other.opening_id:
            found.add("phantom work")
        elif net.foreign and one.state != other.state and one.is_terminal and one.initiator == "ops":
            found.add("an ended work is open at the foreign peer")
        elif not net.foreign and differ(one, other):
            ended = one.is_terminal or other.is_terminal  # else a step has expired: only its sender knows it
            if len(told.get(key, ())) < (len(NAMES) if ended else 1):
                found.add("states differ, and an agent was not told")
    return found
