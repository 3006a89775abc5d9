"""Target `chains`: any text as a condition or a template, any value as a chain file. One line of text, then JSON to judge."""

from collections.abc import Iterator
from typing import Any, Final

from aghbus.protocol.chains import branches, conditions, paths, templates
from aghbus.protocol.chains.chain import check_chain
from aghbus.protocol.chains.conditions import Condition
from aghbus.protocol.chains.errors import ChainError
from tests.fuzz.oracles import any_json, dump, same

SCOPE: Final[dict[str, Any]] = {
    "response": {
        "status": "success",
        "message": 'say "hi" {{input}}',
        "data": {"score": 0.9, "count": 3, "ok": True, "nothing": None, "list": [{"x": 1}, {"x": "two"}], "käse": 1},
    },
    "node_A": {"data": {"score": 0.2, "a-b": 7}, "message": "m"},
    "work": {"id": "work_1", "state": "completed", "message": None, "result": {"exit_code": 0}},
    "input": 5,
    "run": {},
}
_CONDITIONS: Final = (
    'response.status == "success" and response.data.score > 0.8',
    "not (response.data.count <= 3) or node_A.data.a-b != 7",
    '!response.data.ok || work.result.exit_code == 0 && response.data["käse"] < 2e0',
    "response.data.list[1].x == 'tw\\u006f'",
    "response.data.nothing == null",
    "{{node_A.data.score}} and {{ response.message }}",
    "{{response.data.count + 1}}, {{response.data.none + 1 | default: 1}}",
    '{{nobody.notes | default: [{"a": "}}"}]}} {{response.data.nothing|default:\'\'}}',
)
_CHAIN: Final = {
    "name": "review",
    "start": "first",
    "max_steps": 5,
    "nodes": {
        "first": {"peer": "worker", "input": "{{input}}"},
        "second": {"peer": "ops", "input": {"a": "{{first}}"}, "timeout": 60, "answer_timeout": 60},
        "third": {"capability": "x", "input": "{{first.data.n + 1 | default: 1}}", "needs": ["first"]},
        "fourth": {"peer": "worker", "input": "{{second}} {{third}}", "needs": ["first", "third"]},
    },
    "edges": [{"from": "first", "to": "second", "when": 'response.status == "success"'}],
}


def check(raw: bytes) -> None:
    """Check the invariants for any bytes. Raises AssertionError."""
    line, _, rest = raw.decode("utf-8", "replace").partition("\n")
    found = any_json(rest.encode())
    scope = found if isinstance(found, dict) else SCOPE
    _condition(line, scope)
    _template(line, scope)
    _chain(any_json(raw))


def seeds() -> Iterator[bytes]:
    """Conditions of every form, with and without a scope of their own, and a chain file."""
    for condition in _CONDITIONS:
        yield condition.encode()
        yield condition.encode() + b"\n" + dump(SCOPE)
    yield dump(_CHAIN)


def _chain(document: Any) -> None:
    """Every branch of a chain without errors can begin, whatever ends first."""
    chain, faults = check_chain(document)
    assert (chain is None) == bool(faults)
    if chain is None:
        return
    begun = list(chain.start)
    for head in begun:  # grows: the branches end in the order in which they began
        assert not chain.nodes[head].needs or head not in chain.start
        begun += branches.ready(chain.nodes, begun, begun[: begun.index(head) + 1])
    assert sorted(begun) == sorted(branches.first_nodes(chain.start, chain.nodes))
    assert len(begun) <= chain.max_steps


def _condition(text: str, scope: dict[str, Any]) -> None:
    try:
        condition = conditions.read_condition(text)
    except ChainError:
        return
    holds = condition.holds(scope)
    assert isinstance(holds, bool)
    assert condition.holds({}) in (True, False)
    room = conditions.MAX_LENGTH - len(text)
    for changed, wanted in _LAWS:
        inner = changed.replace("C", f"({text})")
        if len(inner) - len(text) <= room and text.count("(") + text.count("not") + text.count("!") < 28:
            assert conditions.read_condition(inner).holds(scope) == wanted(holds), changed
    _comparisons(condition.tree, scope)
    _paths_lead_to_values(condition, scope)


_LAWS: Final = (
    ("not C", lambda holds: not holds),
    ("C and true", lambda holds: holds),
    ("false or C", lambda holds: holds),
    ("not (not C)", lambda holds: holds),
)


def _comparisons(tree: Any, scope: dict[str, Any]) -> None:
    """No two values are both equal and unequal, or both below and not below."""
    if isinstance(tree, conditions.Comparison):
        signs = {
            operator: conditions.Condition("", conditions.Comparison(tree.left, operator, tree.right)).holds(scope)
            for operator in ("==", "!=", "<", ">=", ">", "<=")
        }
        assert not (signs["=="] and signs["!="])
        assert not (signs["<"] and signs[">="]) and not (signs[">"] and signs["<="])
        assert signs["<="] == (signs["<"] or (signs["<="] and signs["=="]))
    for part in getattr(tree, "parts", ()):
        _comparisons(part, scope)
    if isinstance(tree, conditions.Not):
        _comparisons(tree.inner, scope)


def _paths_lead_to_values(condition: Condition, scope: dict[str, Any]) -> None:
    for path in condition.paths():
        assert paths.read_path(path.text) == path
        assert path.find({}) is paths.MISSING
        value = path.find(scope)
        if value is paths.MISSING:
            continue
        assert same(templates.render(f"{{{{{path.text}}}}}", scope), value), "a value changed its type"
        rendered = templates.render(f"<{{{{{path.text}}}}}>", scope)
        assert not isinstance(value, str) or rendered == f"<{value}>", "a substituted value was expanded again"


def _template(text: str, scope: dict[str, Any]) -> None:
    try:
        found = list(templates.references(text))
        rendered = templates.render([text, {"k": text}], scope)
    except ChainError:
        return
    for reference in found:
        _reference(reference, scope)
    assert found or rendered == [text, {"k": text}]
    assert same(rendered[0], rendered[1]["k"])
    assert isinstance(templates.input_text(rendered), str)


def _reference(reference: templates.TemplateReference, scope: dict[str, Any]) -> None:
    """A default is taken exactly where the path has no value or null, and a sum adds."""
    found, value = reference.path.find(scope), reference.find(scope)
    if found is paths.MISSING or found is None:
        assert same(value, reference.default if reference.is_optional else found)
    elif reference.plus is None:
        assert same(value, found)
    else:
        assert value == found + reference.plus
