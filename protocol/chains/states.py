"""The states of a run."""

from typing import Final, Literal

RunState = Literal["running", "waiting", "completed", "failed", "canceled"]
ENDED: Final = frozenset({"completed", "failed", "canceled"})
