"""Finding the operation of a request."""

from collections.abc import Iterable

from aghbus.daemon.api.http.errors import HttpRefusal
from aghbus.protocol.api.operation import AnyOperation


def split(path: str) -> list[str]:
    """The segments of a path after its first slash."""
    return path[1:].split("/")


class _Pattern:
    """The operations of one path with parameters, by method."""

    def __init__(self, segments: list[str]) -> None:
        self.fixed = [at for at, word in enumerate(segments) if not word.startswith("{")]
        self.words = [segments[at] for at in self.fixed]
        self.parameters = [at for at, word in enumerate(segments) if word.startswith("{")]
        self.methods: dict[str, AnyOperation] = {}


class Router:
    """Operations by method and path: a word of the table goes before a parameter in the same place."""

    def __init__(self, operations: Iterable[AnyOperation]) -> None:
        patterns: dict[str, _Pattern] = {}
        for operation in operations:
            pattern = patterns.setdefault(operation.path, _Pattern(split(operation.path)))
            pattern.methods[operation.method] = operation
        self._plain = {path: pattern for path, pattern in patterns.items() if not pattern.parameters}
        self._patterns: dict[tuple[int, str], list[_Pattern]] = {}  # by number of segments and the second one, a word
        for path in sorted(patterns, key=lambda path: [word.startswith("{") for word in split(path)]):
            if path not in self._plain:
                segments = split(path)
                self._patterns.setdefault((len(segments), segments[1]), []).append(patterns[path])

    def find(self, method: str, path: str) -> tuple[AnyOperation, list[str]]:
        """The operation and its parameters' raw segments in order. `path` is as on the wire, percent-encoded.

        Raises HttpRefusal: 404 for a path that is not in the table, 405 with `Allow` for another method.
        """
        if (plain := self._plain.get(path)) is not None:
            return plain.methods.get(method) or _wrong_method(plain, method, path), []
        segments = path[1:].split("/")
        if path.startswith("/") and len(segments) > 1:
            for pattern in self._patterns.get((len(segments), segments[1]), ()):
                values = [*map(segments.__getitem__, pattern.parameters)]
                if "" not in values and [*map(segments.__getitem__, pattern.fixed)] == pattern.words:
                    return pattern.methods.get(method) or _wrong_method(pattern, method, path), values
        raise HttpRefusal(404, "unknown_path", f"{path}: no such path", "GET /openapi.json lists the paths")


def _wrong_method(pattern: _Pattern, method: str, path: str) -> AnyOperation:
    allowed = ", ".join(sorted(pattern.methods))
    raise HttpRefusal(
        405,
        "method_not_allowed",
        f"{method}: is not a method of {path}",
        f"allowed: {allowed}",
        [(b"allow", allowed.encode())],
    )
