"""Callers of A2A agents, and the ids of their works: derived, so that a repeated message is the same work without any state.

The id of a work begins with a hash of its caller. Who asks for a task that begins otherwise is told that there is none.
"""

import hashlib
import re
from typing import Any, Final

import msgspec

from aghbus.protocol.formats.derived_ids import digest

PRINCIPAL: Final = "aghbus.principal"
"""The key in `ext` of what a caller of a gateway sent: `{"name", "issuer"?, "via"}`."""
ANONYMOUS: Final = "anonymous"
"""The name of every caller where nobody is asked who he is."""
MAX_ID_CHARACTERS: Final = 256
"""Of a `messageId` or `contextId` of a client; a hash of it is what is used as an id."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+|-]{0,127}")
_CALLER_DIGITS: Final = 20


class Principal(msgspec.Struct, frozen=True):
    """Who sent a message: the name by which it was authenticated, and who vouches for that name, if it is not this gateway."""

    name: str = ANONYMOUS
    issuer: str | None = None

    @property
    def digits(self) -> str:
        """20 hex digits that stand for the caller in ids."""
        return digest("a2a-caller", self.name, self.issuer)[:_CALLER_DIGITS]

    def extension(self) -> dict[str, Any]:
        """The members of `ext` that name the caller."""
        named = {"name": self.name, "via": "a2a"}
        return {PRINCIPAL: named if self.issuer is None else {**named, "issuer": self.issuer}}


def principal_name(subject: str) -> str:
    """The name of a caller whose credentials say `subject`: that, if it is plain, else `h_` and 32 hex digits of its SHA-256."""
    return subject if _NAME.fullmatch(subject) else "h_" + hashlib.sha256(subject.encode()).hexdigest()[:32]


def task_id(caller: Principal, agent: str, message_id: str) -> str:
    """The id of the work, and task, that a message opens at the agent with this key."""
    return f"work_a2a_{caller.digits}_{digest('a2a-task', agent, message_id)}"


def envelope_id(task: str, message_id: str) -> str:
    """The id of the envelope that carries a message to a task."""
    return "msg_a2a_" + digest("a2a-message", task, message_id)


def belongs_to(caller: Principal, task: str) -> bool:
    """Whether a task is one that `caller` opened."""
    return task.startswith(f"work_a2a_{caller.digits}_")


def caller_part(task: str) -> str:
    """What the ids of all tasks of the same caller begin with."""
    return task.rpartition("_")[0]


def thread_id(caller: Principal, context_id: str) -> str:
    """The thread of a context of `caller`: the context's own id, if a gateway made it for the same caller."""
    own = f"thread_a2a_{caller.digits}_"
    if context_id.startswith(own) and re.fullmatch("[a-f0-9]{32}", context_id[len(own) :]):
        return context_id
    return own + digest("a2a-context", context_id)


def new_context_id(caller: Principal, task: str) -> str:
    """The context of a task whose client named none."""
    return f"thread_a2a_{caller.digits}_{digest('a2a-new-context', task)}"
