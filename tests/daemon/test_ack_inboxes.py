"""What the inboxes for acknowledgements take, until one of them is replaced."""

from collections.abc import Callable

from aghbus.daemon.nats.ack_inboxes import AT_FIRST, AckInboxes
from aghbus.daemon.nats.link import InboundMessage, Subscription
from aghbus.protocol.agh.delivery.acks import may_answer
from aghbus.protocol.agh.nats.names import inbox
from aghbus.store.tables.outbox import Outgoing
from tests.support.publishing import Up


class Subscribed(Up):
    """A link that keeps the callbacks of its subscriptions by subject."""

    def __init__(self) -> None:
        super().__init__()
        self.callbacks: dict[str, Callable[[InboundMessage], None]] = {}

    def subscribe(self, subject: str, callback: Callable[[InboundMessage], None]) -> Subscription:
        self.callbacks[subject] = callback
        return super().subscribe(subject, callback)

    def arrive(self, subject: str) -> None:
        """A message on the subject."""
        self.callbacks[f"{subject.rpartition('.')[0]}.*"](InboundMessage(subject, b"{}", "", None))


def reply_of(inboxes: AckInboxes, recipient: str) -> str:
    return inboxes.reply(Outgoing(7, "agh", "ws_local", "ops", recipient, "msg_1", 0, 0, False, b"{}"))


def taken(answers: int) -> int:
    """How many messages of so many answers an inbox with the allowance of one publish takes."""
    link, floods, got = Subscribed(), list[None](), list[InboundMessage]()

    def deliver(message: InboundMessage) -> int:
        got.append(message)
        return answers

    inboxes = AckInboxes(link, inbox("ops", "ack"), lambda: floods.append(None))
    inboxes.open(deliver)
    subject = reply_of(inboxes, "worker")
    assert may_answer(subject)
    while not floods:
        link.arrive(subject)
    assert reply_of(inboxes, "worker") != subject
    return len(got)


def test_ack_inbox_is_replaced_above_its_answer_limit_per_publish() -> None:
    assert taken(1) == AT_FIRST + 4


def test_the_answers_of_a_list_are_counted_each() -> None:
    assert taken(17) == (AT_FIRST + 4) // 17
