"""Errors of a chain: in its file, a condition, a template, or a reference at run time."""

from aghbus.protocol.base.errors import AghbusError


class ChainError(AghbusError):
    """A rule of a chain is violated. `rule` is a stable code; the message has the details and the position.

    The message may contain text of the chain file or of a peer: escape it before printing it.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message
