"""Taking the commit acknowledgements of our messages (protocol/agh/delivery/acks.py)."""

import re
from functools import partial
from typing import Final

import msgspec

from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.nats.link import InboundMessage
from aghbus.daemon.send.delivery_times import DeliveryTimes
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.send.unconfirmed import Unconfirmed
from aghbus.daemon.send.unresponsive_peers import UnresponsivePeers
from aghbus.daemon.state.presence import PresenceTable
from aghbus.protocol.agh.delivery.acks import (
    MAX_ANSWER_BYTES,
    NOT_STORED,
    Ack,
    Acks,
    is_answer_of,
    parse_ack,
    why_refused,
)
from aghbus.protocol.agh.errors import REASON_CODES
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import outbox, retry

_MAX_TOGETHER: Final = 1024  # acknowledgements that one job applies
_NO_RESPONDERS: Final = "503"  # NATS status: the subject of a message has no subscriber
_SEQUENCE: Final = re.compile(r"[0-9]{1,18}").fullmatch  # last token of our reply subjects; fits SQLite's 63 bits


class _Answer(msgspec.Struct, frozen=True):
    """The acknowledgement of our envelope `seq`, and the message that it came in."""

    seq: int
    ack: Ack
    raw: bytes


class AckReceiver:
    """Records which messages their receivers have committed, and gives up those that they refuse."""

    def __init__(
        self,
        store: Store,
        publisher: Publisher,
        unconfirmed: Unconfirmed,
        unresponsive: UnresponsivePeers,
        delivery_times: DeliveryTimes,
        presence: PresenceTable,
        counters: Counters,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._unconfirmed = unconfirmed
        self._unresponsive = unresponsive
        self._delivery_times = delivery_times
        self._presence = presence
        self._counters = counters
        self._answers: list[_Answer] = []  # received since their job was submitted

    def receive(self, message: InboundMessage) -> int:
        """Handle a message on the reply subject of one of our messages (a callback of the link). Returns how many answers it has,
        1 for any other message."""
        token = message.subject.rpartition(".")[2]
        if not message.data and (message.headers or {}).get("Status") == _NO_RESPONDERS:
            if _SEQUENCE(token):
                self._publisher.no_subscriber(int(token))
            return 1
        if len(message.data) > MAX_ANSWER_BYTES:
            self._counters.add("acks.unknown")
            return 1
        found = parse_ack(message.data)
        if found is None:
            return 1  # a stream's acknowledgement, for one
        acks = found.acks if isinstance(found, Acks) else [(token, found)]
        if answers := [_Answer(int(seq), ack, message.data) for seq, ack in acks if _SEQUENCE(seq)]:
            self._submit(answers)
        return max(1, len(acks))

    def _submit(self, answers: list[_Answer]) -> None:
        if self._unresponsive.subjects or any(answer.ack.outcome != "committed" for answer in answers):
            # Other messages, or an agent that is to be notified, may wait for these answers.
            self._store.write_deferred(partial(self._take_answers, answers=answers), start_commit=True)
            return
        if full := len(self._answers) >= _MAX_TOGETHER:
            self._answers = []  # the earlier ones are in their job
        self._answers += answers
        self._unconfirmed.answers_wait(answer.seq for answer in answers)
        if len(self._answers) > len(answers):
            return
        ended = partial(self._ended, self._answers)
        job = self._store.write_deferred(partial(self._take_answers, answers=self._answers), start_commit=full)
        if job is None:
            ended()
        else:
            job.add_done_callback(ended)

    def _take_answers(self, tx: Transaction, answers: list[_Answer]) -> None:
        self._start_new_list(answers)
        valid = [answer for answer in answers if self._take_answer(tx, answer)]
        self._unconfirmed.answered(tx, [answer.seq for answer in valid])
        tx.after_commit(partial(self._count, valid, len(answers) - len(valid)))

    def _count(self, valid: list[_Answer], unknown: int) -> None:
        for answer in valid:
            self._counters[f"acks.{answer.ack.outcome}"] += 1
        if unknown:
            self._counters.add("acks.unknown", unknown)

    def _start_new_list(self, answers: list[_Answer]) -> None:
        """Later answers do not belong to the job of this list: it has begun, or will not run."""
        if self._answers is answers:
            self._answers = []

    def _ended(self, answers: list[_Answer], _job: object = None) -> None:
        self._start_new_list(answers)
        self._unconfirmed.answers_judged(answer.seq for answer in answers)

    def _take_answer(self, tx: Transaction, answer: _Answer) -> bool:
        """Check and apply one acknowledgement; False when it is not one of this message.

        Reply subjects can be guessed, so the message id must match. Eavesdroppers on the receiver's subject know the id too,
        so a receiver with a key signs its answer.
        """
        seq, ack = answer.seq, answer.ack
        sent = retry.addressed(tx, seq, ack.id)
        if sent is None or not is_answer_of(answer.raw, sender=sent.sender, recipient=sent.recipient):
            return False
        if not ack.digest and self._presence.version_of(sent.recipient) != "":  # versions before 0.1.0 name none
            return False
        if ack.digest and ack.digest != sent.digest:
            self._publisher.give_up(
                tx, seq, "refused", "by the receiver: it knows other content under this id", "duplicate"
            )
        elif ack.outcome == "committed":
            outbox.mark_answered(tx, seq)
            self._delivery_times.acknowledged(seq)
        else:
            reason = ack.reason if ack.reason in REASON_CODES else None
            self._publisher.give_up(tx, seq, "refused", why_refused(ack.reason, ack.state), reason)
            if ack.reason in NOT_STORED:  # later messages of the flow wait for the header that settles this one
                self._unresponsive.mark(sent.subject)
        self._unresponsive.answered(tx, sent.subject)
        return True
