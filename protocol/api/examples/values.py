"""Values that the examples share. They follow one work: `ops` opens it, `patch-worker` carries it out.

A new field of a response gets its value here, or in `table`, once.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from aghbus.protocol.api.artifacts import Artifact
from aghbus.protocol.api.bridge import BridgeMessage
from aghbus.protocol.api.chains import ChainRun, ChainStep
from aghbus.protocol.api.inbox import InboxItem
from aghbus.protocol.api.mcp import McpNotice, McpSession
from aghbus.protocol.api.messages import Message, OpenedWork, SendResponse
from aghbus.protocol.api.peers import CapabilityRecord, Peer
from aghbus.protocol.api.status import BrokerStatus, InboxUse, StatusResponse, StoreStatus
from aghbus.protocol.api.trust import TrustRule
from aghbus.protocol.api.works import HistoryEntry, Work, WorkChange, WorkLimits

AT: Final = 1_795_539_203_943
WORK_ID: Final = "work_01a20e79f7677e4db3f6464d0fd1416c"
THREAD_ID: Final = "thread_01a20e79f7677dbba6ef217bf6336b89"
DIRECT_ID: Final = "direct_9d1a4c28e07b5f3612ab90c4d7e8f512"
OPENING_ID: Final = "msg_01a20e79f7677ebc96860fe62ced3086"
ANSWER_ID: Final = "msg_01a20e79f78a71b0a1d2c3e4f5061728"
TRACE_ID: Final = "msg_01a20e79f78b7f078f0fd6f868f9e260"
LEASE: Final = "lease_0a1dd77da282621d"
TEXT: Final = "Run the migration smoke test"
RESULT: Final = {"passed": True}
RUN_ID: Final = "run_01a20e7a0b2c7d3e8f90a1b2c3d4e5f6"
SESSION_ID: Final = "session_4f2a9c"

OPENED: Final = OpenedWork(
    id=OPENING_ID,
    seq=1,
    kind="say",
    workspace_id="ws_local",
    channel="default",
    to="patch-worker",
    thread_id=THREAD_ID,
    direct_id=None,
    work_id=WORK_ID,
    work_state="submitted",
    state="queued",
    recipient="present",
)
SENT: Final = SendResponse(
    id=TRACE_ID,
    seq=3,
    kind="trace",
    workspace_id="ws_local",
    channel="default",
    to="ops",
    thread_id=THREAD_ID,
    direct_id=None,
    work_id=WORK_ID,
    work_state="completed",
    state="queued",
)
MESSAGE: Final = Message(
    seq=1,
    id=OPENING_ID,
    direction="in",
    kind="say",
    workspace_id="ws_local",
    channel="default",
    sender="ops",
    to="patch-worker",
    thread_id=THREAD_ID,
    direct_id=None,
    work_id=WORK_ID,
    trust="unverified",
    received_ms=AT + 12,
    outcome="opened",
    reason=None,
    delivery="leased",
    delivery_detail=None,
    envelope=msgspec.Raw(
        msgspec.json.encode(
            {
                "protocol": "agh-network/v0",
                "id": OPENING_ID,
                "workspace_id": "ws_local",
                "kind": "say",
                "channel": "default",
                "from": "ops",
                "to": "patch-worker",
                "ts": AT // 1000,
                "surface": "thread",
                "thread_id": THREAD_ID,
                "work_id": WORK_ID,
                "expires_at": AT // 1000 + 86_400,
                "body": {"text": TEXT, "intent": "request"},
                "proof": None,
            }
        )
    ),
)
ITEM: Final = InboxItem(
    seq=1,
    state="leased",
    attempts=1,
    lease=LEASE,
    lease_until_ms=AT + 300_000,
    available_ms=0,
    last_error=None,
    work_state="submitted",
    message=MESSAGE,
    lane="plain",
)
ACKED: Final = replace(ITEM, state="acked", lease=None, lease_until_ms=None, work_state="completed")
RETURNED: Final = replace(ITEM, state="ready", lease=None, lease_until_ms=None, last_error="out of memory")
WORK: Final = Work(
    capability=None,
    first_id=None,
    work_id=WORK_ID,
    workspace_id="ws_local",
    channel="default",
    surface="thread",
    thread_id=THREAD_ID,
    direct_id=None,
    initiator="ops",
    target="patch-worker",
    role="initiator",
    state="completed",
    trust="unverified",
    text=TEXT,
    opening_id=OPENING_ID,
    opened_ms=AT,
    updated_ms=AT + 51,
    last_seq=3,
    message="12 tests passed",
    result=RESULT,
    artifacts=None,
)
LIMITS: Final = WorkLimits(accept_within=300.0, progress_within=None, hedge=False)
OPENING: Final = HistoryEntry(
    seq=1,
    id=OPENING_ID,
    kind="say",
    event="message",
    actor="ops",
    outcome="opened",
    before=None,
    after="submitted",
    at_ms=AT,
    causation_id=None,
    message=TEXT,
    reason=None,
    result=None,
    artifacts=None,
    damaged=False,
)
ENDING: Final = replace(
    OPENING,
    seq=3,
    id=TRACE_ID,
    kind="trace",
    event="trace:completed",
    actor="patch-worker",
    outcome="advanced",
    before="working",
    after="completed",
    at_ms=AT + 51,
    message="12 tests passed",
    result=RESULT,
)
CHANGE: Final = WorkChange(
    work_id=WORK_ID, event="message", outcome="opened", before=None, after="submitted", reason=None, role="target"
)
CARD: Final = {
    "peer_id": "patch-worker",
    "profiles_supported": ["agh-network/v0"],
    "capabilities": ["test.run"],
    "artifacts_supported": ["capability"],
    "trust_modes_supported": ["unverified"],
}
PEER: Final = Peer(
    peer_id="patch-worker",
    workspace_id="ws_local",
    channel="default",
    presence="active",
    trust="unverified",
    first_seen_ms=AT - 60_000,
    last_seen_ms=AT - 4_000,
    card=CARD,
    aghbus=True,
    version="0.1.0",
    summary=None,
    open_works=2,
    takes=4,
)
CAPABILITY: Final = CapabilityRecord(id="test.run", summary=None, digest=None, claim=True, document=None)
_DIGEST: Final = "sha256:ff8f66d7891dce64bf0a4ca2536f8c48f3521d4cd0f37fc0cc03f68843bc1881"
ANNOUNCED: Final = CapabilityRecord(
    id="text.review",
    summary="Reviews a text",
    digest=_DIGEST,
    claim=False,
    document={"id": "text.review", "summary": "Reviews a text", "outcome": "the findings", "digest": _DIGEST},
    until_ms=AT + 120_000,
)
RULE: Final = TrustRule(
    rule="admit", subject=None, who="ops", origin="operator", since_ms=AT, used_ms=None, in_force=True
)
ARTIFACT: Final = Artifact(
    uri=f"agh://artifacts/{WORK_ID}/report.xml",
    work_id=WORK_ID,
    name="report.xml",
    size=5,
    digest="sha256:ce6313e987f06310ef953911c7e9cb0ab963559ca2801c67daf1c10093c45089",
    put_by="patch-worker",
)
FOREIGN: Final = {
    "context": {"feature_id": "005", "workflow": "specify", "iteration": 1},
    "paths": {},
    "task": {"action": "write", "params": {}},
}
FOREIGN_MESSAGE: Final = BridgeMessage(
    seq=1,
    format="humaninloop",
    message=FOREIGN,
    findings=[],
    native=False,
    envelope_id=OPENING_ID,
    kind="say",
    sender="ops",
    trust="unverified",
    channel="default",
    work_id=WORK_ID,
    work_state="submitted",
    work_role="target",
)
RUN: Final = ChainRun(
    run_id=RUN_ID,
    name="smoke",
    state="waiting",
    version=4,
    channel="default",
    node="test",
    steps=1,
    max_steps=5,
    error=None,
    question="Which branch?",
    created_ms=AT,
    updated_ms=AT + 70,
    chain={
        "name": "smoke",
        "start": "test",
        "max_steps": 5,
        "nodes": {"test": {"peer": "patch-worker", "input": "{{input}}"}},
    },
    input=TEXT,
    response=None,
    history=[
        ChainStep(
            step=1,
            node="test",
            branch="test",
            peer="patch-worker",
            work_id=WORK_ID,
            work_state="needs_input",
            message="Which branch?",
            response=None,
            started_ms=AT,
            ended_ms=None,
        )
    ],
)
NOTICE: Final = McpNotice(state="noticed", how="stop-hook", messages=1, through=1, attempts=1, changed_ms=AT + 30)
SESSION: Final = McpSession(
    id=SESSION_ID,
    host="claude-code",
    host_version="2.1.330",
    host_pid=4711,
    open=True,
    called_ms=AT + 20,
    wakes_by=["stop-hook"],
    held_back=[],
    notice=NOTICE,
    started_ms=AT - 9_000,
    reported_ms=AT + 30,
)
STATUS: Final = StatusResponse(
    name="ops",
    peer_id="ops",
    workspace_id="ws_local",
    channels=["default"],
    version="0.1.0",
    pid=4637,
    uptime_s=61.2,
    now_ms=AT + 61_200,
    ready=True,
    observe=False,
    broker=BrokerStatus(
        state="up",
        url="nats://127.0.0.1:36561",
        server="aghbus-embedded 2.12.0",
        embedded=True,
        rtt_ms=0.5,
        max_payload=1_114_112,
        reconnects=0,
        last_error=None,
        slow_consumer_events=0,
    ),
    store=StoreStatus(
        path="/home/me/.local/state/aghbus/instances/ops/store.db",
        bytes=395_336,
        last_seq=3,
        first_seq=1,
        writable=True,
        last_error=None,
        synchronous="full",
    ),
    queues={"receive": 0},
    inbox={"ready": 1, "leased": 0, "dead": 0},
    inbox_use=InboxUse(
        messages=0,
        capacity=10_000,
        bytes=0,
        max_bytes=268_435_456,
        unverified_messages=0,
        unverified_bytes=0,
        senders=[],
    ),
    outbox={"queued": 0, "refused": 0, "expired": 0, "dead": 0},
    works={"submitted": 0, "working": 0, "needs_input": 0},
    peers={"active": 1, "inactive": 0},
    quarantined=0,
    counters={"received": 4, "sent.greet": 2},
    requests=0,
    questions=1,
    limits=[],
    problems=[],
)
