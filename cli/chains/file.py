"""Reads chain files, JSON or TOML, and validates them before any request to the daemon."""

from __future__ import annotations

from aghbus.cli.app.errors import AnswerIsNo
from aghbus.cli.app.input import read_all
from aghbus.host.command_line import Argument
from aghbus.protocol.base.annotations import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.protocol.formats.model import Finding

MAX_BYTES = 1 << 20
"""Largest chain file in bytes: the limit of a request to the daemon."""

CHAIN_FILE = Argument("file", help="chain file: TOML when its name ends in .toml, else JSON; - reads standard input")


def read(path: str) -> tuple[Any, tuple[Finding, ...]]:
    """The document in a file, and the findings about its syntax and content. Raises UsageError when it cannot be read."""
    from aghbus.protocol.chains.chain import check_chain
    from aghbus.protocol.formats.model import Finding
    from aghbus.protocol.formats.strict_json import read_json

    raw = read_all(path, MAX_BYTES)
    if not raw.strip():
        return None, (Finding("", "empty", "error", "is empty"),)
    if not path.endswith(".toml"):
        document, faults = read_json(raw)
        if faults and isinstance(_toml(raw), dict):
            why = "is TOML: rename the file to end in .toml"
            return None, (Finding("", "not_json", "error", why),)
    else:
        document, faults = _toml(raw), ()
        if isinstance(document, str):
            return None, (Finding("", "not_toml", "error", document),)
    return (None, faults) if faults else (document, check_chain(document)[1])


def checked(path: str) -> dict[str, Any]:
    """The document of a valid chain file. Raises AnswerIsNo with the first finding."""
    document, faults = read(path)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise AnswerIsNo(
            f"{path}: {faults[0].path or 'the file'}: {faults[0].message}{more}",
            "`aghctl chain check` lists all errors",
            "chain_invalid",
        )
    found: dict[str, Any] = document
    return found


def _toml(raw: bytes) -> Any:
    """The document, or the error as a string."""
    import tomllib  # only for TOML

    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        return f"is not UTF-8 at byte {error.start}"
    except (ValueError, RecursionError) as error:
        return f"is not TOML: {error}"
