"""SACP: received responses are sanitized and judged by the receiver's guardrails, and are rows of its audit table."""

import json
from typing import Any, Final

import pytest

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.formats.model import Delivered
from aghbus.protocol.formats.sacp.adapter import Sacp, SacpOptions
from aghbus.protocol.formats.sacp.guardrails import REDACTED, Guardrail
from tests.support.bridge_peer import BridgePeer

NOW: Final = 1_776_366_200
CARD: Final = Guardrail("card", r"\d{4}-\d{4}-\d{4}-\d{4}")
NUMBER: Final = "4111-1111-1111-1111"
RESPONSE: Final = {"thought": f"{NUMBER} is it", "status": "success", "data": {"a": 1}, "message": f"It is {NUMBER}."}


def peers(*guardrails: Guardrail) -> tuple[BridgePeer, BridgePeer, Envelope]:
    """An asker with guardrails, a worker without any, and the opening of a work."""
    asker = BridgePeer("asker", Sacp(SacpOptions(guardrails=guardrails)), now=NOW)
    worker = BridgePeer("worker", Sacp(), now=NOW)
    (opening,) = asker.commit(asker.plan(b"Find the number.", target="worker"))
    worker.receive(opening)
    return asker, worker, opening


def traced(opening: Envelope, body: dict[str, Any], **more: Any) -> Draft:
    return Draft(
        id="msg_trace",
        workspace_id=opening.workspace_id,
        channel=opening.channel,
        kind="trace",
        sender="worker",
        to="asker",
        ts=NOW,
        expires_at=NOW + 600,
        surface="thread",
        container=opening.container,
        work_id=opening.work_id,
        body=body,
        **more,
    )


def answered(asker: BridgePeer, worker: BridgePeer, opening: Envelope, body: dict[str, Any], **more: Any) -> Delivered:
    return asker.receive(worker.say(traced(opening, body, **more)))


def record(delivered: Delivered) -> dict[str, Any]:
    assert delivered.record is not None
    return dict(delivered.record)


def test_a_match_in_a_received_message_makes_it_a_failure() -> None:
    asker, worker, _ = peers(CARD)
    (envelope,) = worker.commit(worker.plan(json.dumps(RESPONSE).encode()))
    delivered = asker.receive(envelope)
    guarded = {**RESPONSE, "status": "failure", "message": REDACTED, "thought": ""}
    assert (delivered.message, delivered.native) == (guarded, False)
    assert [(finding.path, finding.rule) for finding in delivered.findings] == [
        ("/message", "guardrail"),
        ("/thought", "guardrail"),
    ]
    row = record(delivered)
    assert (row["original"], row["sent"]) == (RESPONSE, guarded)
    assert (row["direction"], row["peer"], row["envelope_id"]) == ("received", "worker", envelope.id)
    assert (row["at"], row["thought"], row["status"]) == (NOW, RESPONSE["thought"], "failure")


def test_a_native_result_is_judged_too() -> None:
    delivered = answered(*peers(CARD), {"state": "failed", "message": "no", "result": {"card": NUMBER}})
    assert delivered.message == {"thought": "", "status": "failure", "data": {"card": NUMBER}, "message": REDACTED}


@pytest.mark.parametrize(
    ("body", "ext", "native"),
    [
        ({"result": "Sure:\n```json\n{}\n```"}, None, True),
        ({"message": "Here it is: {} I hope that helps."}, None, True),
        ({"message": "m"}, "Here it is: {}", False),
    ],
)
def test_a_response_in_received_text_is_extracted(body: dict[str, Any], ext: str | None, native: bool) -> None:
    written = json.dumps(RESPONSE)
    filled = {"state": "completed"} | {name: text.replace("{}", written) for name, text in body.items()}
    carried = None if ext is None else {"sacp.message": ext.replace("{}", written)}
    delivered = answered(*peers(), filled, ext=carried)
    assert (delivered.message, delivered.native) == (RESPONSE, native)
    assert [finding.rule for finding in delivered.findings] == ["surrounding_text"]
    assert record(delivered)["stage"] in ("fence", "braces")


def test_a_response_in_native_text_that_contradicts_the_state_is_not_used() -> None:
    delivered = answered(*peers(), {"state": "failed", "message": json.dumps(RESPONSE)})
    assert delivered.message == {"thought": "", "status": "failure", "data": {}, "message": json.dumps(RESPONSE)}
    assert record(delivered)["stage"] == "native"


def test_texts_are_rows_in_both_directions() -> None:
    asker, worker, opening = peers()
    sent, received = asker.plan(b"Another.", target="worker").record, record(worker.delivered[0])
    assert sent is not None
    assert (sent["direction"], sent["raw"], sent["stage"], sent["status"]) == ("sent", "Another.", "text", None)
    assert (received["direction"], received["raw"], received["work_id"]) == (
        "received",
        "Find the number.",
        opening.work_id,
    )
