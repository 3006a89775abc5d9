"""What the daemon of a target tells the initiator of a work that no worker gets: a `say`, the reason of which is in its id.

The protocol has no receipt or trace for this: each would answer the work, or be ignored.
"""

from hashlib import sha256
from typing import Final, Literal

WaitsFor = Literal["admission", "release", "worker"]
"""For what it waits: until its initiator is admitted, until the operator releases what is held since a restore, and, when it was
released, until a worker takes it."""

WAITS_FOR: Final = "msg_auto_waits_for_"
"""How the ids of notices begin."""
TEXTS: Final[dict[WaitsFor, str]] = {
    "admission": "This work waits until the operator admits its initiator.",
    "release": "This work waits until the operator releases it: it may have been carried out before a restore of the store here.",
    "worker": "The operator has released this work: it waits for a worker.",
}


def notice_id(reason: WaitsFor, *cause: object) -> str:
    """The id of the notice of `reason`, the same one for the same cause."""
    return f"{WAITS_FOR}{reason}_{sha256(' '.join(map(str, cause)).encode()).hexdigest()[:32]}"


def reason_in(message_id: str) -> WaitsFor | None:
    """The reason in the id of a notice; None in another id."""
    return next((reason for reason in TEXTS if message_id.startswith(f"{WAITS_FOR}{reason}_")), None)
