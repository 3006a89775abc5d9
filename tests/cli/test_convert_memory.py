"""The message history of the offline converter (`adapters.model.MessageHistory`)."""

from typing import Any

from aghbus.cli.convert.history import ConvertedMessage, LineHistory, PeerHistory
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.send import Draft, build

NOW = 1_780_000_000


def said(number: int, sender: str = "a", to: str = "b") -> Envelope:
    draft = Draft(
        id=f"msg_{number}",
        workspace_id="ws_local",
        channel="default",
        kind="say",
        sender=sender,
        to=to,
        ts=NOW,
        expires_at=NOW + 60,
        surface="thread",
        container="thread_one",
        body={"text": "hello"},
    )
    return build(draft, NOW)


def found(memory: PeerHistory, *args: Any) -> Any:
    known = memory.find(*args)
    return None if known is None else known.message


def test_a_message_is_found_in_its_scope_or_in_any_where_none_is_named() -> None:
    lines = LineHistory("ws_local", "default", None)
    lines.remember(ConvertedMessage("sentient", "m", "one", "first", said(1)))
    lines.remember(ConvertedMessage("sentient", "m", "two", "second", said(2, "b", "a")))
    lines.remember(ConvertedMessage("agentos", "m", "one", "another format", said(3)))
    memory = PeerHistory(lines, "sentient", "a")
    assert found(memory, "m", "one") == "first"
    assert found(memory, "m", "two") == "second"
    assert found(memory, "m", "three") is None
    assert found(memory, "m") == "second"
    assert found(memory, "m", "", "out") == "first"
    assert found(memory, "m", "two", "out") is None
    assert found(memory, "n") is None
