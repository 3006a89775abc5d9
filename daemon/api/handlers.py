"""Which method of which part carries out each operation of the local API."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.bridge.bridge import Bridge
from aghbus.daemon.bridge.deliver import MessageDelivery
from aghbus.daemon.bridge.submit import MessageSubmitter
from aghbus.daemon.chains.service import ChainService
from aghbus.daemon.discovery.whois import WhoisQuestions
from aghbus.daemon.services.admission import Admission
from aghbus.daemon.services.console import ConsoleService
from aghbus.daemon.services.diagnostics import Diagnostics
from aghbus.daemon.services.inbox import InboxService
from aghbus.daemon.services.inbox_purge import InboxPurge
from aghbus.daemon.services.mcp_sessions import McpSessions
from aghbus.daemon.services.message_purge import MessagePurge
from aghbus.daemon.services.messages import MessageService
from aghbus.daemon.services.peers import PeerService
from aghbus.daemon.services.status import StatusService
from aghbus.daemon.services.trust_explain import TrustExplainer
from aghbus.daemon.services.trust_rules import TrustRuleService
from aghbus.daemon.services.works import WorkService
from aghbus.protocol.api.operation import AnyOperation
from aghbus.protocol.api.operations import Operations
from aghbus.protocol.formats.attachments import MAX_MESSAGE_BYTES

Handler = Callable[..., Any]
"""Takes the parameters of the path in their order, then the query and the body where the operation has them.

Returns the response, or raises RequestError. Of events, it returns an asynchronous iterator of pages of them. It takes the bytes
of an upload last, as an asynchronous iterator, and returns an Artifact and an iterator of bytes for a download.
"""

HANDLERS: Final[dict[AnyOperation, Handler]] = {
    Operations.get_health: StatusService.health,
    Operations.get_readiness: StatusService.readiness,
    Operations.get_version: StatusService.versions,
    Operations.get_status: StatusService.status,
    Operations.get_stacks: Diagnostics.stacks,
    Operations.get_profile: Diagnostics.profile,
    Operations.list_peers: PeerService.list_peers,
    Operations.find_peers: WhoisQuestions.whois,
    Operations.send_message: MessageService.send,
    Operations.list_messages: MessageService.list_messages,
    Operations.get_message: MessageService.get_message,
    Operations.purge_messages: MessagePurge.purge_messages,
    Operations.get_message_text: MessageService.get_text,
    Operations.list_works: WorkService.list_works,
    Operations.open_work: WorkService.open_work,
    Operations.get_work: WorkService.get_work,
    Operations.act_on_work: WorkService.act_on_work,
    Operations.list_threads: MessageService.list_threads,
    Operations.list_directs: MessageService.list_directs,
    Operations.list_inbox: InboxService.list_items,
    Operations.lease_next_message: InboxService.next,
    Operations.purge_inbox: InboxPurge.purge,
    Operations.lease_message: InboxService.lease,
    Operations.ack_message: InboxService.ack,
    Operations.nack_message: InboxService.nack,
    Operations.requeue_message: InboxService.requeue,
    Operations.list_capabilities: PeerService.list_capabilities,
    Operations.get_capability: PeerService.get_capability,
    Operations.announce_capability: PeerService.announce_capability,
    Operations.list_quarantine: MessageService.list_quarantine,
    Operations.list_admission_requests: Admission.list_requests,
    Operations.list_trust_rules: TrustRuleService.list_rules,
    Operations.change_trust: TrustRuleService.change,
    Operations.explain_trust: TrustExplainer.explain,
    Operations.list_artifacts: Artifacts.list_artifacts,
    Operations.put_artifact: Artifacts.put,
    Operations.get_artifact: Artifacts.get,
    Operations.stream_events: MessageService.events,
    Operations.submit_foreign_message: MessageSubmitter.submit,
    Operations.stream_foreign_messages: MessageDelivery.stream,
    Operations.get_foreign_message: MessageDelivery.get,
    Operations.ack_foreign_messages: MessageDelivery.ack,
    Operations.get_foreign_log: Bridge.list_log,
    Operations.start_chain_run: ChainService.start,
    Operations.list_chain_runs: ChainService.list_runs,
    Operations.get_chain_run: ChainService.get_run,
    Operations.answer_chain_run: ChainService.answer,
    Operations.cancel_chain_run: ChainService.cancel,
    Operations.list_mcp_sessions: McpSessions.list_sessions,
    Operations.report_mcp_session: McpSessions.report,
    Operations.open_console: ConsoleService.open_console,
}
"""Methods of the classes of parts, by operation; but for `openapi`."""

MAX_BODY: Final[dict[AnyOperation, int]] = {Operations.submit_foreign_message: 2 * MAX_MESSAGE_BYTES}
"""Bytes of a body that may be larger than the API's usual one: a message as a string, whose quotes and line ends are escaped."""


def bind(parts: Iterable[object]) -> dict[AnyOperation, Handler]:
    """The handler of each operation as a bound method of the part whose class or base class has it. LookupError: none has."""
    parts = tuple(parts)
    bound = {operation: _bound(handler, parts) for operation, handler in HANDLERS.items()}
    return {**bound, Operations.get_openapi: openapi}


def _bound(handler: Handler, parts: tuple[object, ...]) -> Handler:
    name = handler.__name__
    for part in parts:
        if any(vars(each).get(name) is handler for each in type(part).__mro__):
            bound: Handler = getattr(part, name)
            return bound
    raise LookupError(f"no part of the daemon has the handler {handler.__qualname__}")


async def openapi() -> msgspec.Raw:
    """The OpenAPI document."""
    from aghbus.daemon.api.openapi import document  # which only this operation needs

    return msgspec.Raw(document())
