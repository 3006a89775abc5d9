"""The methods of both clients: one for each operation of the API, and those that consist of several."""

from __future__ import annotations

from aghbus.client.core.core import Core
from aghbus.client.core.method import Method, StreamMethod
from aghbus.client.core.operation import method, stream
from aghbus.protocol.api.operations import Operations


class Methods:
    """Methods take the fields of the request. A field that is an id is made before the first send, unless it is given."""

    health = method(Operations.health)
    readiness = method(Operations.readiness)
    openapi = method(Operations.openapi)
    version = method(Operations.version)
    status = method(Operations.status)
    peers = method(Operations.peers)
    whois = method(Operations.whois)
    send = method(Operations.send)
    messages = method(Operations.messages)
    message = method(Operations.message)
    works = method(Operations.works)
    open_work = method(Operations.open_work)
    work = method(Operations.work)
    act_on_work = method(Operations.act_on_work)
    threads = method(Operations.threads)
    directs = method(Operations.directs)
    inbox = method(Operations.inbox)
    next_message = method(Operations.next_message)
    purge_inbox = method(Operations.purge_inbox)
    lease = method(Operations.lease)
    ack = method(Operations.ack)
    nack = method(Operations.nack)
    requeue = method(Operations.requeue)
    capabilities = method(Operations.capabilities)
    capability = method(Operations.capability)
    quarantine = method(Operations.quarantine)
    requests = method(Operations.requests)
    trust_rules = method(Operations.trust_rules)
    change_trust = method(Operations.change_trust)
    explain_trust = method(Operations.explain_trust)
    artifacts = method(Operations.artifacts)
    submit_foreign = method(Operations.submit_foreign)
    foreign_message = method(Operations.foreign_message)
    ack_foreign = method(Operations.ack_foreign)
    foreign_log = method(Operations.foreign_log)
    start_chain = method(Operations.start_chain)
    chain_runs = method(Operations.chain_runs)
    chain_run = method(Operations.chain_run)
    answer_chain = method(Operations.answer_chain)
    cancel_chain = method(Operations.cancel_chain)
    mcp_sessions = method(Operations.mcp_sessions)
    report_mcp_session = method(Operations.report_mcp_session)
    put_artifact = Method(Core.put_artifact, Operations.put_artifact.route)
    get_artifact = StreamMethod(Core.get_artifact, Operations.get_artifact.route)
    events = stream(Operations.events, Core.events)
    foreign_messages = StreamMethod(Core.foreign_messages, Operations.foreign_messages.route)
    wait = Method(Core.wait)
    wait_ready = Method(Core.wait_ready)
    wait_peer = Method(Core.wait_peer)
    wait_capability = Method(Core.wait_capability)
