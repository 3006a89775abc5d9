"""Every table, queue and cache that peers can fill is declared with its lanes (daemon/state/lanes.py)."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from aghbus.daemon.state.lanes import PARTS, RESOURCES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
FOLDERS = [f"daemon/{name}" for name in ("base", "discovery", "jetstream", "nats", "receive", "send", "state")]
FOLDERS += ["cli/mcp", *(f"store/engine/{name}" for name in ("commit", "log", "memory"))]
CONTAINERS = {
    "Counter",
    "GenerationalCache",
    "OrderedDict",
    "TokenBuckets",
    "defaultdict",
    "deque",
    "dict",
    "list",
    "set",
}
OURS = {
    "_Reader._origins", "_Reader.problems", "bridge_positions", "ClockChanges._changes", "CommitPolicy._samples",
    "Confirmations._expected", "Counters.received", "Counters.rejected", "Counters.undelivered", "DeliveryTimes._since",
    "DeniedSubjects._publishes", "DeniedSubjects._subscriptions", "EventBuffer.subscribers", "identities",
    "Identity.keys", "Identity.signers", "Identity.unusable", "InboxWaiters.waiting", "InMemoryState.addressed",
    "InMemoryState.arrived", "JetStreamCarrier._sequences", "JetStreamCarrier._unconfirmed",
    "JetStreamProfile._leaving", "JetStreamProfile._wrong", "Link._kept", "Link._subscriptions", "meta", "NatsClient.info",
    "NatsClient.pings", "NatsClient.receivers", "NatsConnection._contexts", "NatsFiles.problems",
    "NatsFiles.warnings", "Notifier._waiters", "OpenFlows._flows", "OpenFlows._last", "OwnCard._announced",
    "own_terminal_messages",
    "Publisher._expedited", "Publisher._fresh", "Relay._in_flight", "ServerPool._discovered", "StreamCleanup._observed",
    "TrustRules._counts", "TrustRules.admitted", "Unconfirmed._carried",
    "Unconfirmed._unsubscribed", "Unconfirmed.handed",
    "UnresponsivePeers._probes", "UnresponsivePeers.subjects", "Waker._tasks", "Waker._unanswered",
    "WhoisQuestions._pending", "Writer._batch", "Writer._between",
    "Writer._queue",
}  # fmt: skip
"""What only our agent, our operator or our broker fills."""


def attributes() -> Iterator[str]:
    """`Class.attribute` for each container that an instance begins with."""
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for cls in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)):
            for method in cls.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    yield from (f"{cls.name}.{name}" for name in _containers(method))


def _containers(method: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(method):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Attribute) and value is not None and _is_container(value):
            yield target.attr


def _is_container(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp):
        return True
    function = value.func if isinstance(value, ast.Call) else None
    function = function.value if isinstance(function, ast.Subscript) else function
    return getattr(function, "id", getattr(function, "attr", "")) in CONTAINERS


def tables() -> list[str]:
    sql = "".join(path.read_text() for path in sorted((ROOT / "store/migrations").glob("*.sql")))
    return re.findall(r"CREATE TABLE (\w+)", sql)


def test_every_table_and_container_that_peers_fill_is_declared() -> None:
    declared = Counter(name for resource in RESOURCES.values() for name in resource.holds)
    assert max(declared.values()) == 1
    assert declared.keys() | OURS == {*attributes(), *tables()}
    assert not declared.keys() & OURS


@pytest.mark.parametrize("name", RESOURCES)
def test_every_bound_of_a_resource_is_on_the_page(name: str) -> None:
    for bound in RESOURCES[name].bound.split():
        assert f"`{bound}`" in PAGE, bound


def test_others_never_have_more_than_contacts() -> None:
    for resource in RESOURCES.values():
        assert resource.parts.keys() == PARTS.keys()
        assert resource.parts["other"] <= resource.parts["plain"] <= resource.parts["contact"]
