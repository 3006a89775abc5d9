"""Names of both sides: agents, capabilities, peers, artifacts and principals."""

import hashlib
import re
from collections.abc import Container
from typing import Any, Final

import msgspec

PEER_AGENT: Final = "aghbus"
"""Their name of the agent that is one of our peers; its session is the peer."""
CAPABILITY_AGENT: Final = "aghbus-capability"
"""The same of a capability, for which our daemon chooses the peer."""
MARK: Final = "aghbus"
"""The key of the metadata by which a bridge knows the agents of another one, which get no works: those would go in circles."""
PREFIX: Final = "synadia"
"""First word of the capabilities that their agents get here."""
RESULT_NAME: Final = "result.json"
"""Name of the attachment that has the result of a work."""
MAX_SESSION: Final = 64
"""Characters of a session that we name."""
MAX_TOKEN: Final = 128
"""Characters of a name of theirs that is taken."""

VERBS: Final = ("prompt", "status")
"""Their endpoints that are used, which are also words of the subjects."""

_INBOX: Final = re.compile(r"_INBOX(\.[^\s.*>]+)+")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_UNSAFE_IN_SESSION: Final = re.compile(r"[^a-z0-9_-]+")
_UNSAFE_IN_ARTIFACT: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_ARTIFACT: Final = 100  # of 128; a number may follow
_PRINCIPAL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+|-]{0,127}")


class Address(msgspec.Struct, frozen=True, order=True):
    """One of their agents: `agent` is its kind, such as `claude-code`, and `owner` whose it is."""

    agent: str
    owner: str
    session: str

    def __str__(self) -> str:
        return "/".join((self.agent, self.owner, self.session))


class Selector(msgspec.Struct, frozen=True, order=True):
    """Some of their agents: all of a name, of a name and owner, or one session."""

    agent: str
    owner: str = ""
    session: str = ""

    def matches(self, address: Address) -> bool:
        """Whether it means this agent."""
        return (
            self.agent == address.agent
            and self.owner in ("", address.owner)
            and (self.session in ("", address.session))
        )

    @property
    def capability(self) -> str:
        """The capability that these agents get when no other is given: `synadia.AGENT`, `synadia.AGENT.OWNER.SESSION`."""
        return ".".join((PREFIX, *filter(None, (self.agent, self.owner, self.session))))

    def __str__(self) -> str:
        return "/".join(filter(None, (self.agent, self.owner, self.session)))


def is_token(word: str) -> bool:
    """Whether a name of theirs can be one word of a subject, and of a capability's id."""
    return _TOKEN.fullmatch(word) is not None


def is_endpoint(verb: str, subject: str) -> bool:
    """Whether a subject is `agents.VERB.AGENT.OWNER.SESSION`."""
    words = subject.split(".")
    return len(words) == 5 and words[:2] == ["agents", verb] and all(map(is_token, words))


def is_inbox(subject: str) -> bool:
    """Whether a subject is that of an inbox, where only answers go."""
    return _INBOX.fullmatch(subject) is not None


def selector(text: str) -> Selector:
    """`AGENT`, `AGENT/OWNER` or `AGENT/OWNER/SESSION`. Raises ValueError."""
    words = text.split("/")
    if len(words) > 3 or not all(map(is_token, words)):
        raise ValueError("must be AGENT, AGENT/OWNER or AGENT/OWNER/SESSION, each of A-Z, a-z, 0-9, '_' and '-'")
    return Selector(*words)


def address(agent: str, owner: str, session: str) -> Address | None:
    """The address of an agent that was discovered; None if one of its names cannot be part of a capability's id."""
    found = Address(agent, owner, session)
    return found if all(map(is_token, (agent, owner, session))) else None


def session(name: str) -> str:
    """Their session for one of our peers or capabilities: its name, where that can be one word of a subject, else what is similar
    to it and has a digest of it."""
    shaped = _UNSAFE_IN_SESSION.sub("-", name.lower())
    if shaped == name and 0 < len(name) <= MAX_SESSION:
        return name
    return f"{shaped[: MAX_SESSION - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def artifact_name(filename: str, taken: Container[str]) -> str:
    """The name of an artifact for a file of theirs: its last part, of harmless characters, and none of `taken`."""
    last = re.split(r"[/\\]", filename)[-1]
    stem, dot, ending = _UNSAFE_IN_ARTIFACT.sub("_", last).lstrip(".-")[-_MAX_ARTIFACT:].rpartition(".")
    stem, ending = (stem, dot + ending) if stem else (ending, "")
    stem = stem.lstrip(".-") or "attachment"
    found, number = f"{stem}{ending}", 1
    while found in taken:
        number += 1
        found = f"{stem}_{number}{ending}"
    return found


def principal(user: str | None) -> dict[str, Any]:
    """The member `aghbus.principal` of `ext`: who has sent a prompt, by the key that its signature was verified with."""
    if user is None:
        name = "anonymous"
    elif _PRINCIPAL.fullmatch(user):
        name = user
    else:
        name = f"h_{hashlib.sha256(user.encode()).hexdigest()[:32]}"
    return {"name": name, "via": PREFIX}
