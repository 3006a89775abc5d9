"""Clients that generators make of docs/openapi.json: they have the right types, and they work."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.client_pair import Pair
from tests.support.tools import require_generators

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "openapi.json"

TYPESCRIPT: Final = """\
import type { components, operations } from "./api";
type Schemas = components["schemas"];
type Streamed = operations["streamEvents"]["responses"]["200"]["content"]["text/event-stream"];

export const least: Schemas["WorkOpenRequest"] = { to_capability: "test.run", text: "run" };
export const asText: Schemas["WorkOpenRequest"] = { to: "patch-worker", accept_within: "5m" };
export const asNumber: Schemas["InboxNextRequest"] = { wait: 60, visibility: "1h30m" };
export const wait: operations["getWork"]["parameters"]["query"] = { wait: "30s" };
export const opened: operations["actOnWork"]["parameters"]["path"] = { id: "work_1", verb: "need-input" };
export const recipient = (sent: Schemas["SendResponse"]): string | null => sent.recipient;
export const sender = (event: Streamed): string | undefined => event.message?.sender;
export const first: number | undefined = ({} as Schemas["Event"]).pruned_from;
export const event: Streamed = {} as Schemas["Event"];

// @ts-expect-error the body is required
export const empty: Schemas["SendRequest"] = { kind: "say" };
// @ts-expect-error no such verb
export const jump: operations["actOnWork"]["parameters"]["path"] = { id: "work_1", verb: "jump" };
// @ts-expect-error neither a number nor a text
export const always: Schemas["WorkOpenRequest"] = { to: "patch-worker", accept_within: true };
"""

PYTHON: Final = """\
import sys
import httpx
from made import Client
from made.api.works import act_on_work, get_work, open_work
from made.models import InboxNextRequest, WorkActionRequest, WorkOpenRequest
from made.api.inbox import lease_next_message
from made.models.act_on_work_verb import ActOnWorkVerb

def connect(path):
    return Client(base_url="http://d", httpx_args={"transport": httpx.HTTPTransport(uds=path)})

ops, worker = map(connect, sys.argv[1:])
opened = open_work.sync(client=ops, body=WorkOpenRequest(to="worker", text="run", accept_within="5m"))
item = lease_next_message.sync(client=worker, body=InboxNextRequest(wait="20s", visibility=60)).item
for verb in (ActOnWorkVerb.ACCEPT, ActOnWorkVerb.COMPLETE):
    act_on_work.sync(item.message.work_id, verb, client=worker, body=WorkActionRequest())
found = get_work.sync(opened.work_id, client=ops, wait="20s")
print(found.work.state, found.work.text, len(found.history))
missing = get_work.sync("work_none", client=ops)
print(missing.code)
"""


def run(command: Sequence[str | Path], folder: Path) -> str:
    path = os.pathsep.join([str(Path(command[0]).parent), os.environ["PATH"]])
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_types_of_typescript_are_optional_where_a_request_is_and_complete_where_a_response_is(tmp_path: Path) -> None:
    tools = require_generators()
    run([*tools.openapi_typescript, DOCUMENT, "--output", tmp_path / "api.ts"], tmp_path)
    (tmp_path / "use.ts").write_text(TYPESCRIPT)
    run([*tools.tsc, "--strict", "--noEmit", "use.ts"], tmp_path)


def test_a_generated_client_in_python_carries_a_work_through(pair: Pair, tmp_path: Path) -> None:
    tools = require_generators()
    made: list[str | Path] = [
        "--path",
        DOCUMENT,
        "--output-path",
        tmp_path / "made",
        "--meta",
        "none",
        "--fail-on-warning",
    ]
    run([tools.openapi_python_client, "generate", *made], tmp_path)
    (tmp_path / "use.py").write_text(PYTHON)
    printed = run([tools.python, "use.py", pair.ops.socket_path, pair.worker.socket_path], tmp_path)
    assert printed.splitlines() == ["completed run 3", "not_found"]
