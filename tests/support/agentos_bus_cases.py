"""Messages of AgentOS for the tests of its adapter."""

import msgspec

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.send import Draft


def on_work(draft: Draft, question: Envelope) -> Draft:
    """The draft on the work that `question` opened."""
    return msgspec.structs.replace(draft, work_id=question.work_id, container=question.container)
