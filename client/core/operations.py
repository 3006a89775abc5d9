"""The methods of both clients: one for each operation of the API, and those that consist of several."""

from __future__ import annotations

from aghbus.client.core.core import Core
from aghbus.client.core.method import Method, StreamMethod
from aghbus.client.core.operation import method, stream
from aghbus.protocol.api.operations import Operations


class Methods:
    """Methods take the fields of the request. A field that is an id is made before the first send, unless it is given."""

    health = method(Operations.get_health)
    readiness = method(Operations.get_readiness)
    openapi = method(Operations.get_openapi)
    version = method(Operations.get_version)
    status = method(Operations.get_status)
    stacks = method(Operations.get_stacks)
    profile = method(Operations.get_profile)
    peers = method(Operations.list_peers)
    whois = method(Operations.find_peers)
    send = method(Operations.send_message)
    messages = method(Operations.list_messages)
    message = method(Operations.get_message)
    purge_messages = method(Operations.purge_messages)
    message_text = method(Operations.get_message_text)
    works = method(Operations.list_works)
    open_work = method(Operations.open_work)
    work = method(Operations.get_work)
    act_on_work = method(Operations.act_on_work)
    threads = method(Operations.list_threads)
    directs = method(Operations.list_directs)
    inbox = method(Operations.list_inbox)
    next_message = method(Operations.lease_next_message)
    purge_inbox = method(Operations.purge_inbox)
    lease = method(Operations.lease_message)
    ack = method(Operations.ack_message)
    nack = method(Operations.nack_message)
    requeue = method(Operations.requeue_message)
    capabilities = method(Operations.list_capabilities)
    capability = method(Operations.get_capability)
    announce_capability = method(Operations.announce_capability)
    quarantine = method(Operations.list_quarantine)
    requests = method(Operations.list_admission_requests)
    trust_rules = method(Operations.list_trust_rules)
    change_trust = method(Operations.change_trust)
    explain_trust = method(Operations.explain_trust)
    artifacts = method(Operations.list_artifacts)
    submit_foreign = method(Operations.submit_foreign_message)
    foreign_message = method(Operations.get_foreign_message)
    ack_foreign = method(Operations.ack_foreign_messages)
    foreign_log = method(Operations.get_foreign_log)
    start_chain = method(Operations.start_chain_run)
    chain_runs = method(Operations.list_chain_runs)
    chain_run = method(Operations.get_chain_run)
    answer_chain = method(Operations.answer_chain_run)
    cancel_chain = method(Operations.cancel_chain_run)
    mcp_sessions = method(Operations.list_mcp_sessions)
    report_mcp_session = method(Operations.report_mcp_session)
    open_console = method(Operations.open_console)
    put_artifact = Method(Core.put_artifact, Operations.put_artifact.route)
    get_artifact = StreamMethod(Core.get_artifact, Operations.get_artifact.route)
    events = stream(Operations.stream_events, Core.events)
    foreign_messages = StreamMethod(Core.foreign_messages, Operations.stream_foreign_messages.route)
    wait = Method(Core.wait)
    wait_ready = Method(Core.wait_ready)
    wait_peer = Method(Core.wait_peer)
    wait_capability = Method(Core.wait_capability)
