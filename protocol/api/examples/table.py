"""The table of examples: for each operation what it takes, as the client's method takes it, and what it answers."""

from typing import Any, Final, ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace

from aghbus.protocol.api.artifacts import ArtifactsResponse
from aghbus.protocol.api.base import RequestModel
from aghbus.protocol.api.bridge import BridgeAckResponse, BridgeLogResponse, BridgeSubmitResponse
from aghbus.protocol.api.chains import ChainRunsResponse, ChainRunSummary
from aghbus.protocol.api.console import ConsoleResponse
from aghbus.protocol.api.examples import values as v
from aghbus.protocol.api.inbox import InboxNextResponse, InboxPurgeResponse, InboxResponse
from aghbus.protocol.api.mcp import McpSessionsResponse
from aghbus.protocol.api.messages import (
    Direct,
    DirectsResponse,
    Event,
    MessagesResponse,
    MessageText,
    PurgeKept,
    PurgeResponse,
    Quarantined,
    QuarantineResponse,
    Thread,
    ThreadsResponse,
)
from aghbus.protocol.api.operation import AnyOperation, Operation
from aghbus.protocol.api.operations import Operations
from aghbus.protocol.api.peers import CapabilitiesResponse, PeersResponse, WhoisMatch, WhoisResponse
from aghbus.protocol.api.queries import Query
from aghbus.protocol.api.status import (
    HealthResponse,
    ProfiledStack,
    ProfileResponse,
    ReadinessResponse,
    Stack,
    StacksResponse,
    VersionResponse,
)
from aghbus.protocol.api.trust import (
    AdmissionRequest,
    AdmissionRequestsResponse,
    ExplainedCheck,
    TrustCase,
    TrustChangeResponse,
    TrustExplainResponse,
    TrustRulesResponse,
)
from aghbus.protocol.api.works import WorkResponse, WorksResponse

P = ParamSpec("P")
R = TypeVar("R")


class Example(msgspec.Struct, frozen=True):
    """One call: the parameters of the path, those of the query string or the fields of the body, and the response."""

    operation: AnyOperation
    path: Query
    given: Query | RequestModel
    response: Any


def _example(operation: Operation[P, R], response: R, /, *given: P.args, **named: P.kwargs) -> Example:
    takes = operation.takes
    names = takes.path.__struct_fields__
    path = takes.path(**dict(zip(names, given, strict=False)))
    return Example(operation, path, (takes.request or takes.query)(*given[len(names) :], **named), response)


_EXAMPLES: Final = (
    _example(Operations.get_health, HealthResponse(alive=True)),
    _example(Operations.get_readiness, ReadinessResponse(ready=True, broker=True, subscriptions=True, store=True)),
    _example(Operations.get_openapi, {"openapi": "3.1.0"}),
    _example(
        Operations.get_version, VersionResponse(name="aghbus", version="0.1.0", protocol="agh-network/v0", api="v1")
    ),
    _example(Operations.get_status, v.STATUS),
    _example(
        Operations.get_stacks,
        StacksResponse(
            tasks=[Stack(name="Task-7", frames=["daemon/send/deadlines.py:96 Deadlines.run"])],
            threads=[Stack(name="MainThread", frames=["aghbus/daemon/__main__.py:5 <module>"])],
            queues={"receive": 0},
        ),
    ),
    _example(
        Operations.get_profile,
        ProfileResponse(
            seconds=1.0,
            samples=190,
            stacks=[
                ProfiledStack(frames=["MainThread", "daemon/receive/decider.py:150 Decider.decide_all"], samples=12)
            ],
        ),
        duration=1,
    ),
    _example(Operations.list_peers, PeersResponse(peers=[v.PEER]), capability="test.run"),
    _example(
        Operations.find_peers,
        WhoisResponse(
            request_id="msg_01a20e79f75675af8f0ba6ed6d2f77e4",
            query="test.run",
            peers=[
                WhoisMatch(
                    peer_id="patch-worker",
                    trust="unverified",
                    rtt_ms=2.062,
                    card=v.CARD,
                    summary=None,
                    capabilities=None,
                )
            ],
            expected=1,
            elapsed_ms=12.416,
            ended="first",
        ),
        query="test.run",
        wait=10,
        first=True,
    ),
    _example(
        Operations.send_message,
        replace(v.SENT, id=v.ANSWER_ID, kind="say", work_state="working"),
        kind="say",
        body={"text": "Branch main"},
        work_id=v.WORK_ID,
        expires_in=3600,
    ),
    _example(
        Operations.list_messages,
        MessagesResponse(messages=[v.MESSAGE], next_since=1, next_before=None, pruned_through=0),
        work_id=v.WORK_ID,
        kinds=frozenset({"say"}),
    ),
    _example(Operations.get_message, v.MESSAGE, v.OPENING_ID),
    _example(Operations.get_message_text, MessageText(text=v.TEXT), v.OPENING_ID),
    _example(
        Operations.list_works,
        WorksResponse(works=[v.WORK], next_before=None),
        states=frozenset({"completed"}),
        role="initiator",
    ),
    _example(Operations.open_work, v.OPENED, to_capability="test.run", text=v.TEXT, accept_within=300),
    _example(
        Operations.get_work,
        WorkResponse(
            work=v.WORK,
            history=[v.OPENING, v.ENDING],
            history_omitted=0,
            next_before=None,
            attempts=[],
            limits=v.LIMITS,
            why=None,
        ),
        v.WORK_ID,
        wait=60,
    ),
    _example(Operations.act_on_work, v.SENT, v.WORK_ID, "complete", message="12 tests passed", result=v.RESULT),
    _example(
        Operations.list_threads,
        ThreadsResponse(
            threads=[
                Thread(
                    workspace_id="ws_local",
                    channel="default",
                    thread_id=v.THREAD_ID,
                    messages=3,
                    first_ms=v.AT,
                    last_ms=v.AT + 51,
                    last_seq=3,
                )
            ]
        ),
        limit=20,
    ),
    _example(
        Operations.list_directs,
        DirectsResponse(
            directs=[
                Direct(
                    workspace_id="ws_local",
                    channel="default",
                    direct_id=v.DIRECT_ID,
                    peer="patch-worker",
                    trust="unverified",
                    derived=True,
                    messages=2,
                    last_ms=v.AT,
                    last_seq=9,
                )
            ]
        ),
        limit=20,
    ),
    _example(
        Operations.list_inbox,
        InboxResponse(items=[v.ITEM], next_since=None, counts={"ready": 0, "leased": 1, "dead": 0}, others=0),
        states=frozenset({"leased"}),
    ),
    _example(Operations.lease_next_message, InboxNextResponse(item=v.ITEM), wait=60, visibility=300),
    _example(
        Operations.purge_messages,
        PurgeResponse(
            messages={"say": 8, "receipt": 2, "trace": 4},
            works=2,
            chain_runs=0,
            bridge_log=0,
            quarantined=1,
            artifacts=1,
            kept=PurgeKept(works=0, unread=0, undelivered=0, chain_runs=0, artifacts=0),
            kept_works=[],
            kept_artifacts=[],
            next_since=None,
            overwritten=True,
            problem=None,
            not_reached=["what other peers have stored"],
        ),
        peer="patch-worker",
    ),
    _example(Operations.purge_inbox, InboxPurgeResponse(messages=12, works=2), sender="mallory"),
    _example(Operations.lease_message, v.ITEM, 1, lease=v.LEASE, visibility=300),
    _example(Operations.ack_message, v.ACKED, 1, lease=v.LEASE),
    _example(Operations.nack_message, v.RETURNED, 1, lease=v.LEASE, delay=30, error="out of memory"),
    _example(Operations.requeue_message, v.RETURNED, 1),
    _example(Operations.list_capabilities, CapabilitiesResponse(source=None, capabilities=[v.CAPABILITY], problems=[])),
    _example(Operations.get_capability, v.CAPABILITY, "test.run"),
    _example(
        Operations.announce_capability,
        v.ANNOUNCED,
        "text.review",
        summary="Reviews a text",
        outcome="the findings",
        expires_in=120,
    ),
    _example(
        Operations.list_quarantine,
        QuarantineResponse(
            quarantined=[
                Quarantined(
                    id=1,
                    received_ms=v.AT,
                    subject="agh.network.v0.ws_local.default",
                    message_id="",
                    sender="",
                    reason="invalid_json",
                    detail="the envelope: is not JSON",
                    size=7,
                    raw="{hello}",
                )
            ]
        ),
        limit=10,
    ),
    _example(
        Operations.list_admission_requests,
        AdmissionRequestsResponse(
            requests=[
                AdmissionRequest(
                    peer="ops", key_id=None, trust="unverified", messages=1, openings=1, since_ms=v.AT, text=v.TEXT
                )
            ],
            more=0,
        ),
        limit=10,
    ),
    _example(
        Operations.list_trust_rules,
        TrustRulesResponse(mode="verify", first_use="off", peer_id="patch-worker", key_id=None, rules=[v.RULE]),
    ),
    _example(Operations.change_trust, TrustChangeResponse(rule=v.RULE, changed=True, notes=[]), "admit", who="ops"),
    _example(
        Operations.explain_trust,
        TrustExplainResponse(
            cases=[
                TrustCase(
                    place="stored",
                    direction="in",
                    message_id=v.OPENING_ID,
                    sender="ops",
                    received_ms=v.AT + 12,
                    key_id=None,
                    recorded="unverified",
                    detail="",
                    accepted=True,
                    trust="unverified",
                    decided_by=None,
                    checks=[
                        ExplainedCheck(check="envelope", passed=True, detail="valid, and fresh when it was received")
                    ],
                    note="",
                )
            ]
        ),
        v.OPENING_ID,
    ),
    _example(Operations.list_artifacts, ArtifactsResponse(artifacts=[v.ARTIFACT], more=False), work_id=v.WORK_ID),
    _example(Operations.put_artifact, v.ARTIFACT, v.WORK_ID, "report.xml"),
    _example(Operations.get_artifact, b"", v.WORK_ID, "report.xml"),
    _example(
        Operations.stream_events,
        Event(seq=1, type="envelope", message=v.MESSAGE, work=v.CHANGE),
        kinds=frozenset({"say", "trace"}),
        since=0,
    ),
    _example(
        Operations.submit_foreign_message,
        BridgeSubmitResponse(message=v.FOREIGN, findings=[], sent=[v.OPENED], repeated=False),
        "humaninloop",
        message=v.FOREIGN,
        target="patch-worker",
    ),
    _example(Operations.stream_foreign_messages, v.FOREIGN_MESSAGE, "humaninloop", since=0),
    _example(Operations.get_foreign_message, v.FOREIGN_MESSAGE, "humaninloop", 1),
    _example(Operations.ack_foreign_messages, BridgeAckResponse(format="humaninloop", seq=1), "humaninloop", seq=1),
    _example(
        Operations.get_foreign_log,
        BridgeLogResponse(format="sacp", rows=[{"status": "success", "message": "done"}]),
        "sacp",
        limit=10,
    ),
    _example(
        Operations.start_chain_run,
        replace(v.RUN, state="running", version=1, question=None),
        chain={
            "name": "smoke",
            "start": "test",
            "max_steps": 5,
            "nodes": {"test": {"capability": "test.run", "input": "{{input}}"}},
            "edges": [],
        },
        input=v.TEXT,
        run_id=v.RUN_ID,
    ),
    _example(
        Operations.list_chain_runs,
        ChainRunsResponse(
            runs=[msgspec.convert(v.RUN, ChainRunSummary, from_attributes=True)],
        ),
        states=frozenset({"waiting"}),
    ),
    _example(Operations.get_chain_run, v.RUN, v.RUN_ID, since=0, wait=60),
    _example(
        Operations.answer_chain_run, replace(v.RUN, state="running", version=5, question=None), v.RUN_ID, text="main"
    ),
    _example(Operations.cancel_chain_run, replace(v.RUN, state="canceled", version=5, question=None), v.RUN_ID),
    _example(Operations.list_mcp_sessions, McpSessionsResponse(sessions=[v.SESSION])),
    _example(
        Operations.report_mcp_session,
        v.SESSION,
        v.SESSION_ID,
        host="claude-code",
        host_version="2.1.330",
        host_pid=4711,
        open=True,
        called_ms=v.SESSION.called_ms,
        wakes_by=["stop-hook"],
        held_back=[],
        notice=v.NOTICE,
        expires_in=120,
    ),
    _example(
        Operations.open_console,
        ConsoleResponse(
            host="127.0.0.1",
            port=4638,
            ticket="u7nJ4zqQ2m1bXyVxk0Wb4cL5s8tP3rDgHfJkLmNoPqR",
            expires_in=300.0,
            write=False,
        ),
        write=False,
    ),
)

EXAMPLES: Final[dict[AnyOperation, Example]] = {example.operation: example for example in _EXAMPLES}
"""The example of each operation."""
