"""The files of the page, read once when the console opens, and the headers they are served with."""

from pathlib import Path
from typing import Final

from aghbus.daemon.api.http.exchange import Exchange, Header

FOLDER: Final = Path(__file__).parent / "page"

SECURITY_HEADERS: Final[tuple[Header, ...]] = (
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
        b"require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""No inline script or style, nothing from elsewhere, in no frame."""

_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}


class Pages:
    """The files below FOLDER by their path in the URL; `/` is index.html."""

    def __init__(self) -> None:
        found = [path for path in FOLDER.rglob("*") if path.suffix in _TYPES and path.is_file()]
        self._files = {f"/{path.relative_to(FOLDER).as_posix()}": (path.read_bytes(), path.suffix) for path in found}
        self._files["/"] = self._files.pop("/index.html")

    def serve(self, exchange: Exchange) -> bool:
        """Respond with a file, if there is one of this path."""
        if exchange.method not in ("GET", "HEAD") or (found := self._files.get(exchange.path)) is None:
            return False
        content, suffix = found
        exchange.respond(200, content, SECURITY_HEADERS, content_type=_TYPES[suffix])
        return True
