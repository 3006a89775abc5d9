"""The answer to a foreign message that breaks the rules of its format."""

from typing import ClassVar

from aghbus.protocol.adapters.model import Finding
from aghbus.protocol.errors import RequestError


class MessageRefused(RequestError):
    """Nothing was sent, and quarantine keeps the message; `findings` holds every violation, warnings too."""

    code: ClassVar[str] = "message_refused"

    def __init__(self, name: str, findings: tuple[Finding, ...]) -> None:
        errors = [finding for finding in findings if finding.severity == "error"]
        first = errors[0]
        more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        super().__init__(
            f"the {name} message is refused: {first.path or 'the message'}: {first.message} ({first.rule}){more}",
            hint=f"docs/adapters/{name}.md lists the rules; `aghctl quarantine` shows what was refused",
        )
        self.findings = findings
