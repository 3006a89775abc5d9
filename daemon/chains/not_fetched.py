"""A transaction of a run that needs the artifact store first."""

from aghbus.protocol.envelope import Envelope
from aghbus.protocol.send import Draft


class ArtifactNotFetched(Exception):
    """The artifact store is needed before the transaction can continue: to store the message of an opening that does not fit
    an envelope, or to fetch the message of a result (`what`). Nothing was written: call `ChainMessages.transfer` and retry."""

    def __init__(self, name: str, what: Draft | Envelope) -> None:
        super().__init__(f"the {name} message of {what.id} has to be stored in, or fetched from, the artifact store")
        self.name = name
        self.what = what

    @property
    def key(self) -> str:
        """Identifies the message: ids are unique per sender, and an envelope may refer to messages of several formats."""
        return message_key(self.name, self.what)


def message_key(name: str, what: Draft | Envelope) -> str:
    """The key of the message of format `name` in a draft or an envelope."""
    return f"{name} {what.sender} {what.id}"
