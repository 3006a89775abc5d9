"""The local API: trust rules, and why a message was accepted or refused (docs/trust.md)."""

from typing import Literal

from aghbus.protocol.api.base import RequestModel, ResponseModel
from aghbus.protocol.api.inbox import InboxPurgeResponse

TrustOrigin = Literal["configuration", "operator", "first_use", "addressed"]
TrustVerb = Literal["pin", "unpin", "allow", "disallow", "deny", "undeny", "refuse", "admit", "unadmit"]


class TrustRule(ResponseModel):
    """One trust rule."""

    rule: Literal["pin", "allow", "deny", "may_open_work", "may_talk", "admit"]  # its kind
    subject: str | None  # the nickname of a pin, the channel of may_open_work and may_talk, else null
    who: str  # a key id; of admit and deny also a peer id or a handle, of channel rules a peer id, a handle, `*` or `*@*`
    origin: TrustOrigin  # who made it
    since_ms: int | None  # when it was made, null for the configuration's
    used_ms: int | None  # when a pin of first use was last used (to within an hour), null for all others
    in_force: bool  # false for a pin that the configuration contradicts


class TrustRulesResponse(ResponseModel):
    """The trust rules."""

    mode: Literal["verify", "require"]  # `verify` accepts unsigned envelopes, `require` does not
    first_use: Literal["off", "pin"]  # whether the first key of a nickname is pinned
    peer_id: str  # of this daemon
    key_id: str | None  # of this daemon's key, null without one
    rules: list[TrustRule]  # the configuration's first


class TrustChangeRequest(RequestModel):
    """One change of the trust rules."""

    # for `admit`, `deny` and `refuse` (deny, and purge its unread messages) a peer id, a handle or a key id;
    # for `allow` a key id, or the handle of a peer seen recently, and with `channel` also a plain peer id, `*` or `*@*`;
    # for `pin` a handle or `NICKNAME=KEY_ID`, for `unpin` a nickname
    who: str
    channel: str | None = None  # allow and disallow are then about who may open work there
    talk: bool = False  # with `channel`, about who may only talk there
    dry_run: bool = False  # change nothing: the response has what the change would do


class TrustChangeResponse(ResponseModel):
    """The effect of a change."""

    rule: TrustRule  # the rule that it was about
    changed: bool  # false when the rule was so before
    notes: list[str]  # for people
    purged: InboxPurgeResponse | None = None  # of `refuse`: its messages that were unread


class AdmissionRequest(ResponseModel):
    """Unread messages of a peer that was not admitted."""

    peer: str  # its peer id or handle
    key_id: str | None  # of its key; null: anybody can use this name
    trust: Literal["verified", "unverified"]  # whether its key was verified
    messages: int  # unread, openings of works included
    openings: int  # works that they opened
    since_ms: int  # when the first of them came
    text: str  # of the first of them: its first words


class AdmissionRequestsResponse(ResponseModel):
    """The peers that wait for admission."""

    requests: list[AdmissionRequest]  # the one that has waited longest first
    more: int  # how many peers beyond `limit` wait


class ExplainedCheck(ResponseModel):
    """One check of an envelope."""

    check: str  # its name
    passed: bool  # whether the envelope passed it
    detail: str  # the result


class TrustCase(ResponseModel):
    """The decision about one envelope, as recorded and by the rules as they are now."""

    place: Literal["stored", "quarantine"]  # where the envelope is kept
    direction: str | None  # of a stored envelope, else null
    message_id: str  # of the envelope
    sender: str  # of the envelope
    received_ms: int  # when it came
    key_id: str | None  # of the key that signed it, null without one
    recorded: str  # its trust in the store, or the reason code of its refusal
    detail: str  # of the refusal
    accepted: bool  # whether it was accepted
    trust: Literal["verified", "unverified", "rejected"]  # by the rules now
    decided_by: str | None  # the check that fails now, null when all pass
    checks: list[ExplainedCheck]  # every check, in order
    note: str  # for people


class TrustExplainResponse(ResponseModel):
    """Every envelope of one id."""

    cases: list[TrustCase]  # stored ones first, the latest first
