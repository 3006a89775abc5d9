"""Actions on a work with text of somebody else, which may hold what looks like a credential: the daemon refuses that."""

from __future__ import annotations

import msgspec

from aghbus.client.core.refusals import SecretLike
from aghbus.client.work.job import JobCore
from aghbus.protocol.api.works import WorkActionRequest, WorkVerb
from aghbus.protocol.base.refused_text import without_refused


async def act(job: JobCore, verb: WorkVerb, action: WorkActionRequest) -> int:
    """One action, without what looks like a credential if the daemon refuses that; the sequence of its message. Raises
    ClientError."""
    action.replace_secrets = True
    try:
        return await job.act(verb, action)
    except SecretLike:
        return await job.act(verb, without_secrets(action))


def without_secrets(action: WorkActionRequest) -> WorkActionRequest:
    """The same action with what looks like a credential replaced."""
    changed = {name: without_refused(getattr(action, name)) for name in ("message", "result", "artifacts", "ext")}
    return msgspec.structs.replace(action, **changed)
