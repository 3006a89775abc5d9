"""Messages of each format for tests of aghctl convert."""

from typing import Any

from tests.support import seed_examples

NOW = 1_780_000_000


FOREIGN = ("sentient", "humaninloop", "agentos", "sacp")


RESPONSE = {"thought": "adding", "status": "success", "data": {"sum": 10}, "message": "It is ten."}


OUTPUT = {"success": True, "summary": "done", "artifacts": [], "recommendation": "proceed", "notes": []}


INPUT = {
    "context": {"feature_id": "005", "workflow": "specify", "iteration": 1},
    "paths": {"feature_root": "specs/005/"},
    "task": {"action": "write_spec", "params": {}},
}


def examples(format: str) -> list[Any]:
    return [example.value for example in seed_examples.examples(format)]


def envelope(**changes: Any) -> dict[str, Any]:
    document = {
        "protocol": "agh-network/v0",
        "id": "msg_1",
        "workspace_id": "w",
        "kind": "say",
        "channel": "c",
        "from": "ops",
        "to": "worker",
        "ts": 5,
        "surface": "thread",
        "thread_id": "thread_one",
        "work_id": "work_1",
        "body": {"text": "add 5 and 5", "intent": "request"},
    }
    return {**document, **changes}


def trace(state: str, **changes: Any) -> dict[str, Any]:
    body = {"state": state, "message": "said", "result": {"n": 1}}
    fields = {"id": f"msg_{state}", "kind": "trace", "from": "worker", "to": "ops", "body": body}
    return envelope(**{**fields, **changes})
