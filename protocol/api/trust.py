"""The local API of trust as plain data (docs/trust.md): whom we listen to, and why a message was taken or refused."""

from typing import Literal

from aghbus.protocol.api.models import Answer, Ask

TrustOrigin = Literal["configuration", "operator", "first_use"]


class TrustRule(Answer):
    """One rule of whom we listen to (docs/trust.md). `subject` is the nickname of a pin or the channel of may_open_work and
    may_talk; `who` a key id, of channel rules also a peer id, `*` or `*@*`. `origin` says who made it. A pin that the
    configuration contradicts is not `in_force`."""

    rule: Literal["pin", "allow", "deny", "may_open_work", "may_talk"]
    subject: str | None
    who: str
    origin: TrustOrigin
    since_ms: int | None
    in_force: bool


class TrustRules(Answer):
    """Answer of `GET /v1/trust`. `key_id` is our own key's, null when we have none."""

    mode: Literal["verify", "require"]
    first_use: Literal["off", "pin"]
    peer_id: str
    key_id: str | None
    rules: list[TrustRule]


TrustVerb = Literal["pin", "unpin", "allow", "disallow", "deny", "undeny"]


class TrustAsk(Ask):
    """One change of whom we listen to. `who` is a key id or the handle of a peer heard lately; for `pin` a handle or
    `NICKNAME=KEY_ID`, for `unpin` a nickname. With `channel`, allow and disallow are about who may open work there, with
    `talk` who may only talk; `who` may then also be a plain peer id, `*` or `*@*`."""

    who: str
    channel: str | None = None
    talk: bool = False


class TrustChanged(Answer):
    """What a change came to: the rule it was about. `changed` is false when it was so before; `notes` are for a person."""

    rule: TrustRule
    changed: bool
    notes: list[str]


class TrustStep(Answer):
    """One check of an envelope, and what it found."""

    check: str
    passed: bool
    detail: str


class TrustCase(Answer):
    """What we thought of one envelope, and what we would think by the rules as they are now.

    `recorded` is its trust in the store, or the reason of its refusal with `detail`; `decided_by` the check that fails now, null
    when all pass.
    """

    place: Literal["stored", "quarantine"]
    direction: str | None
    message_id: str
    sender: str
    received_ms: int
    key_id: str | None
    recorded: str
    detail: str
    listened: bool
    trust: Literal["verified", "unverified", "rejected"]
    decided_by: str | None
    steps: list[TrustStep]
    note: str


class TrustWhy(Answer):
    """Answer of `GET /v1/trust/why/{id}`: everything of that id, stored first, the latest first."""

    cases: list[TrustCase]
