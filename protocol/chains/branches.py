"""Branches of a chain: which node belongs to which branch, and when a branch begins.

A branch is a sequence of nodes along the edges, beginning with a start node or with a node that has `needs`; it has the name of
that node. Each branch begins once in a run. `needs` names the branches that must have ended before.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol


class BranchingNode(Protocol):
    """A node, as far as branches depend on it."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Branches that must have ended before this node begins one; empty: the node begins none by itself."""
        ...


Nodes = Mapping[str, BranchingNode]
Steps = Mapping[str, Collection[str]]
"""The targets of the edges of each node."""


def first_nodes(start: Collection[str], nodes: Nodes) -> tuple[str, ...]:
    """The first node of each branch."""
    return (*start, *(name for name, node in nodes.items() if node.needs and name not in start))


def crossing_edges(heads: Collection[str], edges: Steps) -> Iterator[tuple[str, str, str]]:
    """Edges that lead from one branch into another: the node, its branch, and the branch of the edge."""
    owner = {head: head for head in heads}
    seen = set(heads)
    for head in heads:
        queue = [head]
        while queue:
            for target in edges.get(queue.pop(), ()):
                if owner.setdefault(target, head) != head:
                    yield target, owner[target], head
                elif target not in seen:
                    seen.add(target)
                    queue.append(target)


def in_a_circle(nodes: Nodes) -> tuple[str, ...]:
    """Branches that need each other, or that need one of these; empty when there are none."""
    left = {name: set(node.needs) & nodes.keys() for name, node in nodes.items() if node.needs}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    return tuple(left)


def ready(nodes: Nodes, begun: Collection[str], ended: Collection[str]) -> tuple[str, ...]:
    """The branches that begin now: not begun yet, and all that they need have ended."""
    new = {name: node.needs for name, node in nodes.items() if name not in begun}
    return tuple(name for name, needs in new.items() if needs and set(needs) <= set(ended))
