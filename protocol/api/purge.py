"""The local API: purging stored messages."""

from typing import Annotated

from msgspec import Meta

from aghbus.protocol.api.base import RequestModel, ResponseModel


class PurgeRequest(RequestModel):
    """Remove stored messages with all that is kept of their text; exactly one of peer, work_id and before_ms."""

    peer: str | None = (
        None  # messages from and to this peer id; of a key id or a handle those of every handle of the key
    )
    work_id: str | None = None  # messages of this work, and of those from and to which it was handed over
    # messages that were stored before, in Unix milliseconds, without works that changed since
    before_ms: Annotated[int, Meta(ge=0)] | None = None
    since: Annotated[int, Meta(ge=0)] = 0  # continue after this sequence: `next_since` of the last response
    dry_run: bool = False  # count what would be removed, and remove nothing


class PurgeKept(ResponseModel):
    """What was chosen and is still needed."""

    works: int  # that have not ended, with their messages
    unread: int  # messages that are ready or leased in the inbox
    undelivered: int  # sent messages that were neither answered nor given up
    chain_runs: int  # in progress
    artifacts: int  # that other peers have put for the works, or that the NATS server does not let us remove


class PurgeResponse(ResponseModel):
    """What one request removed, or with dry_run would remove. Add the numbers of all until `next_since` is null."""

    messages: dict[str, int]  # by kind
    works: int
    chain_runs: int  # ended runs of chains
    bridge_log: int  # entries of the logs of foreign formats
    quarantined: int  # refused envelopes
    artifacts: int  # that we had put for the works
    kept: PurgeKept  # what was chosen and stays
    kept_works: list[str]  # ids, the first 100
    kept_artifacts: list[str]  # URIs, the first 100
    next_since: int | None  # null: done
    overwritten: bool  # whether no bytes of what was removed are left in the store's files
    problem: str | None  # why not, null unless the last step failed: repeat the request
    not_reached: list[str]  # where copies may be that this daemon does not reach
