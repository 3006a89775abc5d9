"""The local API: trust rules, and why a message was accepted or refused (docs/trust.md)."""

from typing import Literal

from aghbus.protocol.api.base import RequestModel, ResponseModel

TrustOrigin = Literal["configuration", "operator", "first_use"]
TrustVerb = Literal["pin", "unpin", "allow", "disallow", "deny", "undeny"]


class TrustRule(ResponseModel):
    """One trust rule.

    rule: its kind.
    subject: the nickname of a pin, the channel of may_open_work and may_talk, else null.
    who: a key id; of channel rules also a peer id, `*` or `*@*`.
    origin: who made it.
    since_ms: when it was made, null for the configuration's.
    in_force: false for a pin that the configuration contradicts.
    """

    rule: Literal["pin", "allow", "deny", "may_open_work", "may_talk"]
    subject: str | None
    who: str
    origin: TrustOrigin
    since_ms: int | None
    in_force: bool


class TrustRulesResponse(ResponseModel):
    """The trust rules.

    mode: `verify` accepts unsigned envelopes, `require` does not.
    first_use: whether the first key of a nickname is pinned.
    peer_id: of this daemon.
    key_id: of this daemon's key, null without one.
    rules: the configuration's first.
    """

    mode: Literal["verify", "require"]
    first_use: Literal["off", "pin"]
    peer_id: str
    key_id: str | None
    rules: list[TrustRule]


class TrustChangeRequest(RequestModel):
    """One change of the trust rules.

    who: a key id, or the handle of a peer seen recently; for `pin` a handle or `NICKNAME=KEY_ID`, for `unpin` a nickname; with
        `channel` also a plain peer id, `*` or `*@*`.
    channel: allow and disallow are then about who may open work there.
    talk: with `channel`, about who may only talk there.
    """

    who: str
    channel: str | None = None
    talk: bool = False


class TrustChangeResponse(ResponseModel):
    """The effect of a change.

    rule: the rule that it was about.
    changed: false when the rule was so before.
    notes: for people.
    """

    rule: TrustRule
    changed: bool
    notes: list[str]


class TrustStep(ResponseModel):
    """One check of an envelope.

    check: its name.
    passed: whether the envelope passed it.
    detail: what was found.
    """

    check: str
    passed: bool
    detail: str


class TrustCase(ResponseModel):
    """The decision about one envelope, as recorded and by the rules as they are now.

    place: where the envelope is kept.
    direction: of a stored envelope, else null.
    message_id: of the envelope.
    sender: of the envelope.
    received_ms: when it came.
    key_id: of the key that signed it, null without one.
    recorded: its trust in the store, or the reason code of its refusal.
    detail: of the refusal.
    accepted: whether it was accepted.
    trust: by the rules now.
    decided_by: the check that fails now, null when all pass.
    steps: every check, in order.
    note: for people.
    """

    place: Literal["stored", "quarantine"]
    direction: str | None
    message_id: str
    sender: str
    received_ms: int
    key_id: str | None
    recorded: str
    detail: str
    accepted: bool
    trust: Literal["verified", "unverified", "rejected"]
    decided_by: str | None
    steps: list[TrustStep]
    note: str


class TrustExplainResponse(ResponseModel):
    """Every envelope of one id.

    cases: stored ones first, the latest first.
    """

    cases: list[TrustCase]
