"""What can be wrong with a chain: its file, a condition, a template, or what a template refers to at run time."""

from aghbus.protocol.errors import AghbusError


class ChainError(AghbusError):
    """A rule of a chain is broken. `rule` is a stable word, the message says what and where in the text at hand.

    The message may hold text of the chain file or of a peer: escape it before a terminal sees it.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message
