"""Finding the route of a request."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from aghbus.daemon.api.http.errors import HttpRefusal
from aghbus.daemon.api.route import Route


def split(path: str) -> tuple[str, ...]:
    """The segments of a path after its first slash."""
    return tuple(path[1:].split("/"))


@dataclass(slots=True)
class _Node:
    """A place in the tree of path segments; `any` is the branch of a parameter, taken when no word fits."""

    words: dict[str, "_Node"] = field(default_factory=dict)
    any: "_Node | None" = None
    methods: dict[str, Route] = field(default_factory=dict)


class Router:
    """Routes by method and path: a word of the table goes before a parameter in the same place."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self._plain: dict[tuple[str, str], Route] = {}
        for route in routes:
            self._node_for(route.path).methods[route.method] = route
            if "{" not in route.path:
                self._plain[route.method, route.path] = route

    def find(self, method: str, path: str) -> tuple[Route, list[str]]:
        """The route and its parameters' raw segments in order. `path` is as on the wire, percent-encoded.

        Raises HttpRefusal: 404 for a path that is not in the table, 405 with `Allow` for another method.
        """
        if (plain := self._plain.get((method, path))) is not None:
            return plain, []
        found = self._walk(self._root, split(path), 0)
        if found is None or not path.startswith("/"):
            raise HttpRefusal(404, "unknown_path", f"{path}: no such path", "GET /openapi.json lists the paths")
        node, values = found
        route = node.methods.get(method)
        if route is None:
            allowed = ", ".join(sorted(node.methods))
            raise HttpRefusal(
                405,
                "method_not_allowed",
                f"{method}: is not a method of {path}",
                f"allowed: {allowed}",
                [(b"allow", allowed.encode())],
            )
        return route, values

    def _node_for(self, path: str) -> _Node:
        node = self._root
        for segment in split(path):
            if segment.startswith("{"):
                node.any = node.any or _Node()
                node = node.any
            else:
                node = node.words.setdefault(segment, _Node())
        return node

    def _walk(self, node: _Node, segments: tuple[str, ...], at: int) -> tuple[_Node, list[str]] | None:
        if at == len(segments):
            return (node, []) if node.methods else None
        word = node.words.get(segments[at])
        if word is not None and (found := self._walk(word, segments, at + 1)) is not None:
            return found
        if node.any is not None and segments[at] and (found := self._walk(node.any, segments, at + 1)) is not None:
            return found[0], [segments[at], *found[1]]
        return None
