"""The faults of peers: ProtocolError and its classes. `reason` of a class is the reason code of its receipt.

The lifecycle has further reasons (protocol/agh/lifecycle.py); protocol/agh/receive.py makes the receipt.
"""

from typing import Any, ClassVar, Final

from aghbus.protocol.base.errors import AghbusError

REASON_CODES: Final = frozenset(
    # Spec section 2, "receipt": the registry. An unknown code on the wire is malformed.
    [
        "malformed",
        "expired",
        "duplicate",
        "unsupported_kind",
        "unsupported_profile",
        "verification_failed",
        "not_target",
        "not_found",
        "busy",
        "internal",
        "invalid_surface",
        "conversation_not_found",
        "work_closed",
        "work_container_mismatch",
        "legacy_field_rejected",
    ]
)


class ProtocolError(AghbusError):
    """An envelope that breaks a rule of the protocol.

    `reason` is the wire's reason code (spec section 2, receipt), `field` the dotted name of the field at fault (empty for
    the whole envelope), `rule` the rule that it breaks. The message never contains text of the peer. `document` is the envelope,
    if it was decoded completely.
    """

    reason: ClassVar[str] = "malformed"

    def __init__(self, rule: str, field: str = "") -> None:
        super().__init__(f"{field}: {rule}" if field else rule)
        self.field = field
        self.rule = rule
        self.document: dict[str, Any] | None = None

    @property
    def detail(self) -> str:
        """Field and rule in one line."""
        return str(self)

    def release(self) -> None:
        """Drop the document, and the stack frames that hold it: an error may wait in a queue."""
        self.document = self.__traceback__ = self.__context__ = None


class Malformed(ProtocolError):
    """Not an envelope, or a field of the wrong type or grammar (spec section 5 steps 1, 2, 4, 5)."""


class Undecodable(Malformed):
    """Not a JSON object, or one beyond the limits: not even its sender can be read."""


class LegacyFieldRejected(ProtocolError):
    """Carries `interaction_id` (spec section 1)."""

    reason = "legacy_field_rejected"


class UnsupportedKind(ProtocolError):
    """`kind` is none of the six (spec section 1)."""

    reason = "unsupported_kind"


class Expired(ProtocolError):
    """Not fresh (spec section 5 step 3)."""

    reason = "expired"


class InvalidSurface(ProtocolError):
    """Surface and container do not fit each other or the kind (spec section 5 step 4)."""

    reason = "invalid_surface"


class VerificationFailed(ProtocolError):
    """A digest or a proof does not hold (spec sections 2 and 8)."""

    reason = "verification_failed"


class UnsupportedProfile(ProtocolError):
    """A trust profile that local policy does not accept (spec section 8)."""

    reason = "unsupported_profile"


class NotTarget(ProtocolError):
    """Directed to another peer, or into a room of which we or the sender are not a member (spec sections 4 and 5 step 7)."""

    reason = "not_target"


class FormerPeer(ProtocolError):
    """New work for our former peer id, which only finishes open works (spec section 8)."""

    reason = "not_found"
