"""`python -m aghbus.daemon.api.documents DOCS`: writes openapi.json and the table of routes in api.md there."""

import json
import re
import sys
from pathlib import Path
from typing import Final

from aghbus.daemon.api.openapi import document
from aghbus.protocol.api.operation import AnyOperation
from aghbus.protocol.api.operations import OPERATIONS

_TABLE: Final = re.compile(r"\| method \| path .*?\n\n", re.DOTALL)


def openapi_text() -> str:
    """docs/openapi.json: the OpenAPI document, indented."""
    return json.dumps(json.loads(document()), indent=2, ensure_ascii=False) + "\n"


def with_table(text: str) -> str:
    """`text` of docs/api.md with the table of routes as it is now."""
    head = ["| method | path | what | query or body | response |", "|---|---|---|---|---|"]
    table = "\n".join(head + [_row(operation) for operation in OPERATIONS])
    return _TABLE.sub(lambda _: f"{table}\n\n", text, count=1)


def _row(operation: AnyOperation) -> str:
    return f"| `{operation.method}` | `{operation.path}` | {operation.summary} | {_given(operation)} | {_response(operation)} |"


def _given(operation: AnyOperation) -> str:
    if operation.transfer == "upload":
        return "the content"
    if (request := operation.takes.request) is not None:
        return f"`{request.__name__}`" if request.__struct_fields__ else ""
    return ", ".join(f"`{name}`" for name in operation.takes.query.__struct_encode_fields__)


def _response(operation: AnyOperation) -> str:
    if operation.transfer == "download":
        return "the content"
    if operation.response is dict:
        return "OpenAPI 3.1"
    status = f" ({operation.status})" if operation.status != 200 else ""
    return ("events of " if operation.transfer == "events" else "") + f"`{operation.response.__name__}`{status}"


def main(folder: Path) -> None:
    """Write both documents."""
    (folder / "openapi.json").write_text(openapi_text())
    page = folder / "api.md"
    page.write_text(with_table(page.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
