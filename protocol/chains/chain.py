"""The chain file: nodes, edges, start node and step limit. It is JSON or TOML, given here as the parsed value.

All errors that can be found without running the chain are reported at once, as findings with JSON Pointers.
"""

import re
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from aghbus.protocol.agh.identifiers import is_peer
from aghbus.protocol.agh.limits import MAX_LIFETIME
from aghbus.protocol.base.formats import Format
from aghbus.protocol.base.text import has_control, is_blank
from aghbus.protocol.chains.branches import crossing_edges, first_nodes, in_a_circle
from aghbus.protocol.chains.conditions import read_condition
from aghbus.protocol.chains.errors import ChainError
from aghbus.protocol.chains.paths import ROOTS, WORDS, Path
from aghbus.protocol.chains.templates import TemplateReference, references
from aghbus.protocol.formats.model import Finding
from aghbus.protocol.formats.strict_json import MAX_DEPTH, check_value, pointer

MAX_NODES: Final = 256  # the latest response of each is stored, up to the size of an envelope
MAX_EDGES: Final = 4_096
MAX_STEPS: Final = 1_000  # node visits of one run; each is a work
DEFAULT_TIMEOUT: Final = 86_400.0  # seconds of a node without `timeout`, and of its questions without `answer_timeout`
_MAX_NAME: Final = 256  # characters of a name, a capability or an intent
_NODE_ID: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")

Seconds = Annotated[float, Meta(gt=0, le=MAX_LIFETIME)]
Recommendation = Literal["proceed", "retry", "escalate"]
Where = tuple[str | int, ...]
F = TypeVar("F", bound=msgspec.Struct)


class ChainNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent of the chain: a `peer`, or any peer with the `capability` at the time of the visit, which the work then asks for.
    Or, without an agent, a step that writes the artifacts in the latest output of the node `apply` (humaninloop).

    `input` is a template of any JSON value. With a `format` other than sacp it must be an object: a message of that format.
    `timeout` in seconds: from the visit of the node, or from an answer to its question, to the end of its work.
    `answer_timeout` in seconds: from a question to its answer. `needs`: the branches after which the node begins its own.
    `follow_hint`: the nodes that the `next_step_hint` of the node's response may choose.

    With `apply`: `root` is a template of the folder that the paths are relative to. Only outputs with one of the
    `recommendations` are applied; with `escalate` when the node `apply` asks. `allow` has files, and folders, that tools may load.
    """

    input: Any = None
    peer: str | None = None
    capability: str | None = None
    format: Format | None = None
    intent: str | None = None
    timeout: Seconds = DEFAULT_TIMEOUT
    answer_timeout: Seconds = DEFAULT_TIMEOUT
    needs: tuple[str, ...] = ()
    follow_hint: tuple[str, ...] = ()
    apply: str | None = None
    root: str | None = None
    recommendations: tuple[Recommendation, ...] = ("proceed",)
    allow: tuple[str, ...] = ()

    @property
    def templates(self) -> list[Any]:
        """Everything in which references are replaced."""
        return [self.input] if self.apply is None else [self.root]

    @property
    def opening_format(self) -> Format | None:
        """The format whose adapter makes the opening envelope. For SACP the input is the text of a plain say."""
        return None if self.format == "sacp" else self.format


class ChainEdge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An edge between two nodes. Without `when` it is the default."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    when: str | None = None


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """A validated chain. Edges are tried in order; the nodes of `start` begin their branches together."""

    name: str
    start: tuple[str, ...]
    max_steps: int
    nodes: dict[str, ChainNode]
    edges: tuple[ChainEdge, ...] = ()

    def applied_with_question(self, node: str) -> list[str]:
        """The nodes that apply an output of `node` which asks (`escalate`), in the order of the file."""
        return [name for name, one in self.nodes.items() if one.apply == node and "escalate" in one.recommendations]

    def edges_of(self, node: str) -> tuple[ChainEdge, ...]:
        """The edges that leave `node`, those of its hints first."""
        hints = hint_edges(node, self.nodes[node])
        return (*hints, *(edge for edge in self.edges if edge.source == node))


def hint_edges(name: str, node: ChainNode) -> tuple[ChainEdge, ...]:
    """The edges of `follow_hint`: one to each node, for the response that names it."""
    hint = 'response.next_step_hint == "{}"'
    return tuple(ChainEdge(source=name, target=one, when=hint.format(one)) for one in node.follow_hint)


class _ChainFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    start: str | list[str]
    max_steps: Annotated[int, Meta(ge=1, le=MAX_STEPS)]
    nodes: dict[str, Any]
    edges: list[Any] = []

    @property
    def starts(self) -> tuple[str, ...]:
        """The start nodes, in order."""
        return (self.start,) if isinstance(self.start, str) else tuple(self.start)


def check_chain(document: Any) -> tuple[Chain | None, tuple[Finding, ...]]:
    """The chain in a parsed file, and the errors; with errors the chain is None."""
    faults = _not_json(document, ()) or list(check_value(document))
    file = _converted(document, _ChainFile, (), faults) if not faults else None
    if file is None:
        return None, tuple(faults)
    nodes = {name: _converted(value, ChainNode, ("nodes", name), faults) for name, value in file.nodes.items()}
    _check_inputs(file, nodes, faults)
    edges = [_converted(value, ChainEdge, ("edges", index), faults) for index, value in enumerate(file.edges)]
    _check_words(file, faults)
    for name, node in nodes.items():
        _check_node(name, node, frozenset(nodes), faults)
    for index, edge in enumerate(edges):
        _check_edge(index, edge, frozenset(nodes), faults)
    if not faults:
        _check_branches(file, nodes, edges, faults)
    if faults:
        return None, tuple(faults)
    return Chain(
        name=file.name,
        start=file.starts,
        max_steps=file.max_steps,
        nodes={name: node for name, node in nodes.items() if node is not None},
        edges=tuple(edge for edge in edges if edge is not None),
    ), ()


def _not_json(value: Any, path: Where) -> list[Finding]:
    """The errors for values without a form in JSON: dates and times of TOML."""
    if len(path) > MAX_DEPTH:
        return [_error(path[:1], "too_deep", f"is nested deeper than {MAX_DEPTH}")]
    if isinstance(value, dict):
        inner = [_not_json(item, (*path, str(key))) for key, item in value.items()]
        return [fault for faults in inner for fault in faults]
    if isinstance(value, list):
        inner = [_not_json(item, (*path, index)) for index, item in enumerate(value)]
        return [fault for faults in inner for fault in faults]
    if value is None or isinstance(value, str | bool | int | float):
        return []
    return [_error(path, "not_json", "is not a JSON value: write dates and times as strings")]


def _converted(value: Any, form: type[F], path: Where, faults: list[Finding]) -> F | None:
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        rule, _, where = str(error).partition(" - at `$")
        keys = re.findall(r"\.([\w-]+)|\[(\d+)\]", where)
        inner = tuple(name or int(index) for name, index in keys)
        faults.append(_error((*path, *inner), "shape", rule[:1].lower() + rule[1:]))
        return None


def _check_words(file: _ChainFile, faults: list[Finding]) -> None:
    if is_blank(file.name) or len(file.name) > _MAX_NAME or has_control(file.name):
        faults.append(_error(("name",), "name", f"must be 1 to {_MAX_NAME} characters without control characters"))
    if not file.starts or len(set(file.starts)) < len(file.starts):
        faults.append(_error(("start",), "start", "must be a node, or a list of different nodes"))
    for start in file.starts:
        if start not in file.nodes:
            faults.append(_error(("start",), "unknown_node", f"{start!r} is not a node"))
    for key, count, most in (("nodes", len(file.nodes), MAX_NODES), ("edges", len(file.edges), MAX_EDGES)):
        if count > most:
            faults.append(_error((key,), "too_many", f"are {count}, at most {most} are allowed"))


def _check_inputs(file: _ChainFile, nodes: dict[str, ChainNode | None], faults: list[Finding]) -> None:
    """Every agent gets an input, which may be null."""
    for name, node in nodes.items():
        if node is not None and node.apply is None and "input" not in file.nodes[name]:
            faults.append(_error(("nodes", name), "shape", "object missing required field `input`"))


def _check_steps(path: Where, node: ChainNode, nodes: frozenset[str], faults: list[Finding]) -> None:
    """A step that applies names a node and nothing of an agent, and an agent nothing of such a step. Hints name nodes."""
    for index, one in enumerate(node.follow_hint):
        if one not in nodes:
            faults.append(_error((*path, "follow_hint", index), "unknown_node", f"{one!r} is not a node"))
    if node.apply is None:
        given = (node.root, node.allow or None, node.recommendations if node.recommendations != ("proceed",) else None)
        if any(value is not None for value in given):
            faults.append(_error(path, "apply", "root, recommendations and allow need apply"))
        return
    if node.apply not in nodes:
        faults.append(_error((*path, "apply"), "unknown_node", f"{node.apply!r} is not a node"))
    if any(value is not None for value in (node.peer, node.capability, node.format, node.intent, node.input)):
        faults.append(_error(path, "apply", "excludes peer, capability, format, intent and input"))


def _check_node(name: str, node: ChainNode | None, nodes: frozenset[str], faults: list[Finding]) -> None:
    path: Where = ("nodes", name)
    if not _NODE_ID.fullmatch(name) or name in ROOTS | WORDS:
        reserved = ", ".join(sorted(ROOTS | WORDS))
        faults.append(_error(path, "node_id", f"must match {_NODE_ID.pattern}, and must not be one of {reserved}"))
    if node is None:
        return
    _check_steps(path, node, nodes, faults)
    if node.apply is None and (node.peer is None) == (node.capability is None):
        faults.append(_error(path, "who", "must have either a peer or a capability"))
    if node.peer is not None and not is_peer(node.peer):
        faults.append(_error((*path, "peer"), "peer", f"{node.peer!r} is not a peer id"))
    for key, word in (("capability", node.capability), ("intent", node.intent)):
        if word is not None and (is_blank(word) or len(word) > _MAX_NAME or has_control(word)):
            faults.append(_error((*path, key), key, f"must be 1 to {_MAX_NAME} characters without control characters"))
    if node.opening_format is not None and not isinstance(node.input, dict):
        faults.append(_error((*path, "input"), "format", f"must be an object: a message of the format {node.format}"))
    if node.capability is not None and node.intent is not None:
        faults.append(_error((*path, "intent"), "intent", "is set by the capability, which the work asks for"))
    if node.opening_format is not None and node.intent is not None:
        faults.append(_error((*path, "intent"), "format", f"is set by the message of the format {node.format}"))
    try:
        for reference in references(node.templates):
            _check_reference(reference, node, nodes)
    except ChainError as error:
        faults.append(_error((*path, "input" if node.apply is None else "root"), error.rule, error.message))


def _check_edge(index: int, edge: ChainEdge | None, nodes: frozenset[str], faults: list[Finding]) -> None:
    if edge is None:
        return
    for key, name in (("from", edge.source), ("to", edge.target)):
        if name not in nodes:
            faults.append(_error(("edges", index, key), "unknown_node", f"{name!r} is not a node"))
    if edge.when is None:
        return
    try:
        for path in read_condition(edge.when).paths():
            _check_root(path, nodes)
    except ChainError as error:
        faults.append(_error(("edges", index, "when"), error.rule, error.message))


def _check_reference(reference: TemplateReference, node: ChainNode, nodes: frozenset[str]) -> None:
    _check_root(reference.path, nodes)
    if len(node.needs) > 1 and reference.path.root in ("response", "work") and not reference.is_optional:
        text = f"{reference.path.text!r} is of no single node: the node needs {len(node.needs)} branches, so name one"
        raise ChainError("needs", text)


def _check_branches(
    file: _ChainFile,
    found: dict[str, ChainNode | None],
    edges: list[ChainEdge | None],
    faults: list[Finding],
) -> None:
    """Each node belongs to at most one branch, and `needs` names branches that can end before."""
    nodes = {name: node for name, node in found.items() if node is not None}
    heads = first_nodes(file.starts, nodes)
    if len(heads) > file.max_steps:
        faults.append(_error(("max_steps",), "max_steps", f"is less than the number of branches, {len(heads)}"))
    targets: dict[str, list[str]] = {}
    hints = [edge for name, node in nodes.items() for edge in hint_edges(name, node)]
    for edge in (*edges, *hints):
        if edge is not None:
            targets.setdefault(edge.source, []).append(edge.target)
    for name, one, other in crossing_edges(heads, targets):
        faults.append(_error(("nodes", name), "two_branches", f"belongs to two branches, {one} and {other}"))
    for name, node in nodes.items():
        if node.needs and name in file.starts:
            faults.append(_error(("nodes", name, "needs"), "needs", "must be empty: the node is a start node"))
        for need in node.needs:
            if need not in heads:
                words = f"{need!r} begins no branch: it is neither a start node nor a node with needs"
                faults.append(_error(("nodes", name, "needs"), "needs", words))
    for name in in_a_circle(nodes):
        faults.append(_error(("nodes", name, "needs"), "circle", "cannot begin: the branches need each other"))


def _check_root(path: Path, nodes: frozenset[str]) -> None:
    if path.root not in ROOTS and path.root not in nodes:
        known = ", ".join(sorted(ROOTS))
        raise ChainError("unknown_node", f"{path.text!r} begins with neither a node nor one of {known}")


def _error(path: Where, rule: str, message: str) -> Finding:
    return Finding(pointer(*path), rule, "error", message)
