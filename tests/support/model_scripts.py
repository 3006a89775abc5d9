"""What a stand-in of a model does with the tools of the bus (tests/support/model_api.py)."""

import re
from collections.abc import Callable
from typing import Any

from tests.support.model_api import Script, Turn, Use

ENDED = frozenset({"completed", "failed", "canceled"})


def colleague(
    to: str,
    task: str,
    *,
    first: Callable[[], object] = lambda: None,
    between: Callable[[str], object] = lambda state: None,
) -> Script:
    """A model that hands `task` over to the peer `to` when its user asks for help, and does all that waits in any other turn.

    `first` is called before it fetches messages, `between` with the state of a work before its next step.
    """

    def script(prompt: str) -> Turn:
        if prompt.startswith("MCP task "):  # words of the host itself: a task that it follows has ended
            return _noted(prompt)
        return _hand_over(to, task) if "help" in prompt else _work_off(first, between)

    return script


def _noted(prompt: str) -> Turn:
    yield from ()
    return f"{_work_id_in(prompt)} is completed."


def _hand_over(to: str, task: str) -> Turn:
    peers = (yield Use("peers", {}))["peers"]
    assert to in [peer["peer_id"] for peer in peers]
    opened = yield Use("open_work", {"to": to, "task": task})
    return f"Handed over to {to}: {_work_id_in(opened)}."


def _work_id_in(result: Any) -> str:
    """Of an opened work: a host that runs it as a task in the background gives its model a sentence with the id."""
    found = re.search(r"work_[0-9a-f]+", str(result))
    assert found is not None, result
    return found[0]


def _work_off(first: Callable[[], object], between: Callable[[str], object]) -> Turn:
    """Fetch until nothing waits. Every work for us is accepted and completed; every message is acknowledged."""
    ended: list[str] = []
    first()
    while messages := (yield Use("inbox", {"limit": 20}))["messages"]:
        for work_id in dict.fromkeys(each["work_id"] for each in messages if "work_id" in each):
            ended.append((yield from _finish(work_id, between)))
        yield Use("ack", {"messages": [{"seq": each["seq"], "lease": each["lease"]} for each in messages]})
    return "\n".join(ended) or "Nothing waits."


def _finish(work_id: str, between: Callable[[str], object]) -> Turn:
    """Step by step, from the state that the daemon names: a step that failed is not repeated blindly."""
    while (work := (yield from _shown(work_id)))["role"] == "target" and work["state"] not in ENDED:
        between(work["state"])
        step = {"step": "accept"} if work["state"] == "submitted" else {"step": "complete", "message": "all done"}
        yield Use("step", {"work_id": work_id, **step})
    return f"{work_id} is {work['state']}."


def _shown(work_id: str) -> Any:
    return (yield Use("work", {"work_id": work_id}))["works"][0]
