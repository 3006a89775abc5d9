"""Chains: the guardrails of the daemon that runs a chain judge each result before the next node gets it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bridge_daemons import daemons
from tests.support.bridging import submit
from tests.support.chain_agents import Agent, Envelope, begin, chain, reach

NUMBER = "4111-1111-1111-1111"
NODES = {
    "a": {"peer": "worker", "input": "first"},
    "b": {"peer": "worker", "input": "then {{a.message}} {{work.message}}"},
}


def by_sacp(agent: Agent, envelope: Envelope) -> None:
    answer = {"thought": "looked up", "status": "success", "data": {}, "message": f"It is {NUMBER}."}
    submit(agent.daemon, "sacp", json.dumps(answer), work_id=envelope["work_id"])


def by_humaninloop(agent: Agent, envelope: Envelope) -> None:
    answer = {"success": True, "summary": f"It is {NUMBER}.", "artifacts": [], "recommendation": "proceed"}
    submit(agent.daemon, "humaninloop", answer, work_id=envelope["work_id"])


def natively(agent: Agent, envelope: Envelope) -> None:
    agent.complete(envelope, f"It is {NUMBER}.")


@pytest.mark.parametrize("answer", [by_sacp, by_humaninloop, natively])
def test_peer_result_blocked_by_guardrail_fails_or_follows_edge(
    tmp_path: Path, answer: Callable[[Agent, Envelope], None]
) -> None:
    (tmp_path / "patterns").write_text("card: (?:[0-9]{4}-){3}[0-9]{4}\n")

    def work(agent: Agent, envelope: Envelope, _seq: int) -> None:
        if envelope["body"]["text"] == "first":
            answer(agent, envelope)
        else:
            agent.complete(envelope)

    guards = ("--sacp-guardrails", str(tmp_path / "patterns"))
    with daemons(tmp_path, ("ops", *guards), ("worker",)) as (ops, worker), Agent(worker, work) as agent:
        run = reach(ops, begin(ops, chain(NODES, ("a", "b", None))), "completed", "failed")
        assert run["state"] == "failed"
        assert agent.texts() == ["first"]
        handled = chain(NODES, ("a", "b", 'response.status == "failure"'))
        run = reach(ops, begin(ops, handled), "completed", "failed")
        assert run["state"] == "completed"
        assert agent.texts()[-1] == "then " + " ".join(2 * ["[withheld by a guardrail]"])
        assert NUMBER not in json.dumps(run)
        rows = [row for row in ops.get("/v1/bridge/sacp/log")["rows"] if row["direction"] == "received"]
        assert len(rows) == 2
        assert {(row["peer"], row["status"], row["original"]["message"]) for row in rows} == {
            ("worker", "failure", f"It is {NUMBER}.")
        }
