"""Actions on a work with text of somebody else, which may hold what looks like a credential."""

from __future__ import annotations

import msgspec

from aghbus.protocol.api.works import WorkActionRequest
from aghbus.protocol.base.refused_text import without_refused


def without_secrets(action: WorkActionRequest) -> WorkActionRequest:
    """The same action with what looks like a credential replaced, for a daemon that refuses it as it is."""
    changed = {name: without_refused(getattr(action, name)) for name in ("message", "result", "artifacts", "ext")}
    return msgspec.structs.replace(action, **changed)
