"""Chain files: valid chains, and errors with their JSON Pointers."""

import datetime
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.chains.chain import MAX_NODES, check_chain


def chain(**changes: Any) -> dict[str, Any]:
    """A valid chain of two nodes."""
    return {
        "name": "email",
        "start": "researcher",
        "max_steps": 10,
        "nodes": {
            "researcher": {"peer": "agent-1", "input": "{{input}}"},
            "validator": {"capability": "email.check", "input": "{{researcher.data.guesses}}", "timeout": 60},
        },
        "edges": [{"from": "researcher", "to": "validator", "when": 'response.status == "success"'}],
        **changes,
    }


def node(**fields: Any) -> dict[str, Any]:
    """A chain whose first node is this."""
    return chain(nodes={"researcher": {"input": "x", **fields}}, edges=[])


def edge(**fields: Any) -> dict[str, Any]:
    """A chain whose only edge is this."""
    return chain(edges=[{"from": "researcher", "to": "validator", **fields}])


def test_a_chain_is_read() -> None:
    found, faults = check_chain(chain())
    assert found is not None, faults
    assert (found.name, found.start, found.max_steps) == ("email", ("researcher",), 10)
    assert found.nodes["validator"].capability == "email.check"
    assert [(edge.source, edge.target) for edge in found.edges_of("researcher")] == [("researcher", "validator")]
    assert found.edges_of("validator") == ()


def test_a_chain_in_toml_is_the_same() -> None:
    text = """
    name = "email"
    start = "researcher"
    max_steps = 10
    [nodes.researcher]
    peer = "agent-1"
    input = "{{input}}"
    [nodes.validator]
    capability = "email.check"
    input = "{{researcher.data.guesses}}"
    timeout = 60
    [[edges]]
    from = "researcher"
    to = "validator"
    when = 'response.status == "success"'
    """
    assert check_chain(tomllib.loads(text)) == check_chain(chain())


@pytest.mark.parametrize(
    ("document", "path", "rule"),
    [
        ([], "", "shape"),
        ({}, "", "shape"),
        (chain(max_steps=0), "/max_steps", "shape"),
        (chain(max_steps=1001), "/max_steps", "shape"),
        (chain(max_steps=True), "/max_steps", "shape"),
        (chain(more=1), "", "shape"),
        (chain(name=" "), "/name", "name"),
        (chain(name="a\x1bb"), "/name", "name"),
        (chain(start="nobody"), "/start", "unknown_node"),
        (chain(nodes={}, edges=[]), "/start", "unknown_node"),
        (chain(nodes={"researcher": 5}, edges=[]), "/nodes/researcher", "shape"),
        (chain(nodes={"researcher": {"peer": "p"}}, edges=[]), "/nodes/researcher", "shape"),
        (node(), "/nodes/researcher", "who"),
        (node(peer="p", capability="c"), "/nodes/researcher", "who"),
        (node(peer="Not A Peer"), "/nodes/researcher/peer", "peer"),
        (node(capability=""), "/nodes/researcher/capability", "capability"),
        (node(peer="p", intent="\n"), "/nodes/researcher/intent", "intent"),
        (node(capability="c", intent="ask"), "/nodes/researcher/intent", "intent"),
        (node(peer="p", timeout=0), "/nodes/researcher/timeout", "shape"),
        (node(peer="p", timeout=700_000), "/nodes/researcher/timeout", "shape"),
        (node(peer="p", format="yaml"), "/nodes/researcher/format", "shape"),
        (node(peer="p", format="agentos"), "/nodes/researcher/input", "format"),
        (node(peer="p", format="agentos", input={}, intent="ask"), "/nodes/researcher/intent", "format"),
        (node(peer="p", input="{{"), "/nodes/researcher/input", "template"),
        (node(peer="p", input={"a": "{{nobody.x}}"}), "/nodes/researcher/input", "unknown_node"),
        (node(peer="p", input={"when": datetime.date(2026, 1, 1)}), "/nodes/researcher/input/when", "not_json"),
        (node(peer="p", input=[1.0, float("nan")]), "/nodes/researcher/input/1", "not_finite"),
        (node(peer="p", input=2**60), "/nodes/researcher/input", "integer_range"),
        (node(peer="p", follow_hint=["nobody"]), "/nodes/researcher/follow_hint/0", "unknown_node"),
        (node(peer="p", root="x"), "/nodes/researcher", "apply"),
        (node(apply="researcher"), "/nodes/researcher", "apply"),
        (chain(nodes={"researcher": {"apply": "nobody"}}, edges=[]), "/nodes/researcher/apply", "unknown_node"),
        (
            chain(nodes={"researcher": {"apply": "researcher", "root": "{{nobody}}"}}, edges=[]),
            "/nodes/researcher/root",
            "unknown_node",
        ),
        (
            chain(nodes={"researcher": {"apply": "researcher", "recommendations": ["stop"]}}, edges=[]),
            "/nodes/researcher/recommendations/0",
            "shape",
        ),
        (edge(to="nobody"), "/edges/0/to", "unknown_node"),
        (edge(**{"from": "nobody"}), "/edges/0/from", "unknown_node"),
        (edge(when="response.status = 1"), "/edges/0/when", "condition"),
        (edge(when="nobody.x == 1"), "/edges/0/when", "unknown_node"),
        (edge(when=""), "/edges/0/when", "condition"),
        (edge(unless="x"), "/edges/0", "shape"),
        (chain(edges=[{"from": "researcher"}]), "/edges/0", "shape"),
        (chain(nodes={**chain()["nodes"], "response": {"peer": "p", "input": 1}}), "/nodes/response", "node_id"),
        (chain(nodes={**chain()["nodes"], "not": {"peer": "p", "input": 1}}), "/nodes/not", "node_id"),
        (chain(nodes={**chain()["nodes"], "a.b": {"peer": "p", "input": 1}}), "/nodes/a.b", "node_id"),
        (chain(nodes={**chain()["nodes"], "a/b": {"peer": "p", "input": 1}}), "/nodes/a~1b", "node_id"),
    ],
)
def test_each_fault_is_found_where_it_is(document: Any, path: str, rule: str) -> None:
    found, faults = check_chain(document)
    assert found is None
    assert [(fault.path, fault.rule) for fault in faults] == [(path, rule)]


def test_all_errors_are_reported_at_once() -> None:
    document = chain(start="nobody", edges=[{"from": "a", "to": "b", "when": "="}])
    document["nodes"]["validator"]["peer"] = "p"
    _, faults = check_chain(document)
    assert {fault.path for fault in faults} == {
        "/start",
        "/nodes/validator",
        "/edges/0/from",
        "/edges/0/to",
        "/edges/0/when",
    }


def test_the_number_of_nodes_is_bounded() -> None:
    nodes = {f"n{number}": {"peer": "p", "input": 1} for number in range(MAX_NODES)}
    assert check_chain(chain(nodes=nodes, start="n0", edges=[]))[1] == ()
    nodes["one_more"] = {"peer": "p", "input": 1}
    assert [fault.path for fault in check_chain(chain(nodes=nodes, start="n0", edges=[]))[1]] == ["/nodes"]


def test_deep_documents_are_refused() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    assert {fault.rule for fault in check_chain(node(peer="p", input=deep))[1]} == {"too_deep"}


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["name", "start", "max_steps", "nodes", "edges"]), _json) | _json)
def test_any_document_is_a_chain_or_has_faults(document: Any) -> None:
    found, faults = check_chain(document)
    assert (found is None) == bool(faults)


@given(_json, _json)
def test_any_node_and_edge_is_valid_or_has_errors(one: Any, other: Any) -> None:
    found, faults = check_chain(chain(nodes={"researcher": one}, edges=[other]))
    assert (found is None) == bool(faults)
    assert all(fault.path.startswith(("/nodes", "/edges")) for fault in faults)


# branches


def branched(start: Any, edges: dict[str, str], **needs: list[str]) -> list[tuple[str, str]]:
    """The errors of a chain with nodes A to E, these edges, and these `needs` of nodes."""
    nodes = {name: {"peer": "p", "input": "x", "needs": needs.get(name, [])} for name in "ABCDE"}
    listed = [{"from": source, "to": target} for source, targets in edges.items() for target in targets]
    found, faults = check_chain({"name": "n", "start": start, "max_steps": 9, "nodes": nodes, "edges": listed})
    assert (found is None) == bool(faults)
    return [(fault.path, fault.rule) for fault in faults]


def test_branches_begin_together_or_after_others_and_may_loop() -> None:
    assert branched("A", {}, B=["A"], C=["A"], D=["B", "C"]) == []
    assert branched(["A", "B"], {"A": "C", "C": "A", "B": "B", "D": "E", "E": "D"}, D=["A", "B"]) == []


@pytest.mark.parametrize("start", [[], ["A", "A"]])
def test_start_names_different_nodes(start: list[str]) -> None:
    assert branched(start, {}) == [("/start", "start")]


def test_a_node_belongs_to_one_branch() -> None:
    assert branched(["A", "B"], {"A": "C", "B": "C"}) == [("/nodes/C", "two_branches")]
    assert branched(["A", "B"], {"A": "D", "B": "D"}, D=["A", "B"]) == [("/nodes/D", "two_branches")] * 2
    assert branched(["A", "B"], {"B": "C", "C": "A"}) == [("/nodes/A", "two_branches")]


def test_needs_names_branches_that_can_end_before() -> None:
    assert branched("A", {"A": "B"}, C=["B"]) == [("/nodes/C/needs", "needs")]
    assert branched("A", {}, C=["Z"]) == [("/nodes/C/needs", "needs")]
    assert branched("A", {}, A=["B"], B=["A"]) == [
        ("/nodes/A/needs", "needs"),
        ("/nodes/A/needs", "circle"),
        ("/nodes/B/needs", "circle"),
    ]
    circle = branched("A", {}, B=["A", "C"], C=["B"], D=["C"])
    assert circle == [(f"/nodes/{name}/needs", "circle") for name in "BCD"]


def test_every_branch_has_a_step() -> None:
    document = {**chain(), "start": ["researcher", "validator"], "edges": [], "max_steps": 1}
    assert [(fault.path, fault.rule) for fault in check_chain(document)[1]] == [("/max_steps", "max_steps")]
    assert check_chain({**document, "max_steps": 2})[1] == ()


def test_response_reference_is_ambiguous_after_several_branches() -> None:
    joined = {
        "A": {"peer": "p", "input": "x"},
        "B": {"peer": "p", "input": "x"},
        "C": {"peer": "p", "input": "{{response.message}}", "needs": ["A", "B"]},
    }
    document = {"name": "n", "start": ["A", "B"], "max_steps": 9, "nodes": joined}
    assert [(fault.path, fault.rule) for fault in check_chain(document)[1]] == [("/nodes/C/input", "needs")]
    for text, needs in (("{{response.message | default: 0}}", ["A", "B"]), ("{{response.message}}", ["A"])):
        joined["C"] = {"peer": "p", "input": text, "needs": needs}
        assert check_chain(document)[1] == ()
