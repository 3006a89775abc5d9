"""Peers with a message that was not answered before its second try: they get everything in order once they return.

    unresponsive  only the oldest unanswered message is sent again; at growing intervals all are, if the subject has a subscriber
    back          the peer has greeted or answered: everything pending goes out immediately, and new messages follow it

Peers that do not acknowledge commits get new messages at once meanwhile: they may be there, and have nothing to answer. Only the
broker says whether they are:

    absent        the subject had no subscriber: new messages wait, and each try is one of the oldest message alone. Once the
                  broker passes one on, the peer is back

Without this order a returning peer would get the messages that happen to be due, and older ones after them. The broker says when
a subject has no subscriber; sending everything would then not keep the order, because the peer may subscribe in the middle. The
state is kept by subject: a peer may have left one channel and not another.
"""

from collections.abc import Callable, Iterable, Set
from functools import partial
from typing import Final

from aghbus.daemon.base.clock import Clock
from aghbus.protocol.base.backoff import exponential_delay
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import retry
from aghbus.store.tables.outbox import Outgoing

FIRST_PAUSE: Final = (
    1.0  # seconds between the first two times that all unanswered messages are sent again; doubled each time
)
_WINDOW: Final = 256  # unanswered messages that are sent at once
_NO_SUBSCRIBER_WAIT: Final = 0.25  # seconds in which the broker reports that a subject has no subscriber


_State = tuple[float, int, bool, int]


class _Subject:
    """One subject without answers.

    `until` is the monotonic second from which all messages may be sent again; `probe` is the sequence of the last one sent as
    the oldest.
    """

    def __init__(self, until: float) -> None:
        self.until = until
        self.no_subscriber = False
        self.acknowledges: bool | None = True  # None: it has not greeted
        self.absent = False  # does not acknowledge, and had no subscriber
        self.back = False
        self.expedite = False  # back, or to be tried now, but the pending messages are not due yet
        self.after = 0  # the sequence of the message by which an absent peer was found to be back
        self.probe = 0
        self._waits = 0

    @property
    def holds(self) -> bool:
        """Whether new messages wait for older ones."""
        return self.acknowledges is True or self.absent or self.back

    @property
    def state(self) -> _State:
        """What choosing messages changes, for a rollback."""
        return self.until, self._waits, self.no_subscriber, self.probe

    @state.setter
    def state(self, state: _State) -> None:
        self.until, self._waits, self.no_subscriber, self.probe = state

    def probed(self, seq: int, now: float) -> None:
        """The oldest message goes out: assume a subscriber, unless the broker reports that there is none."""
        self.probe, self.no_subscriber = seq, False
        self.until = max(self.until, now + _NO_SUBSCRIBER_WAIT)

    def wait(self, now: float, ceiling: float) -> None:
        """Set the next time at which all messages may be sent again."""
        self._waits += 1
        self.until = now + exponential_delay(self._waits, FIRST_PAUSE, ceiling)

    def returned(self) -> None:
        """The peer has greeted or answered."""
        self.back = self.expedite = True


class UnresponsivePeers:
    """The unresponsive peers of one publisher, in `subjects`. In memory only: after a restart the first tries find them again."""

    def __init__(self, clock: Clock, on_return: Callable[[], None] = lambda: None) -> None:
        """`on_return` is called when a peer has returned."""
        self._clock = clock
        self._on_return = on_return
        self.subjects: dict[str, _Subject] = {}
        self._probes: dict[int, _Subject] = {}

    def affects(self, rows: Iterable[Outgoing]) -> bool:
        """Whether any of `rows` goes to an unresponsive peer."""
        return bool(self.subjects) and any(row.subject in self.subjects for row in rows)

    def mark(self, subject: str, *, acknowledges: bool | None = True) -> None:
        """A message on this subject was not answered; `acknowledges`: its peer acknowledges commits, None if it has not greeted."""
        found = self._on(subject)
        found.acknowledges = acknowledges
        found.absent &= acknowledges is not True

    def unsubscribed(self, subject: str, *, acknowledges: bool | None = False) -> None:
        """The broker had nobody to pass on a message to; `acknowledges` as for `mark`, not True."""
        found = self._on(subject)
        found.absent, found.back, found.no_subscriber, found.acknowledges = True, False, True, acknowledges

    def is_absent(self, subject: str) -> bool:
        """Whether the peer does not acknowledge, and had no subscriber on this subject."""
        return (found := self.subjects.get(subject)) is not None and found.absent

    def taken(self, seq: int) -> bool:
        """The broker has passed on message `seq`. Returns whether that shows that an absent peer is back."""
        found = self._probes.get(seq)
        if found is None or not found.absent:
            return False
        found.absent, found.after = False, seq
        self._returned(found)
        return True

    def peer_joined(self, subject: str, *, acknowledges: bool | None = True) -> None:
        """A peer has joined. Without acknowledgements nobody knows whether it has subscribed: its oldest message is tried first."""
        found = self._on(subject)
        found.acknowledges, found.after = acknowledges, 0
        if acknowledges:
            found.absent = False
            self._returned(found)
        else:
            found.absent = found.expedite = True
            self._on_return()

    def _returned(self, found: _Subject) -> None:
        found.returned()
        self._on_return()

    def _on(self, subject: str) -> _Subject:
        return self.subjects.setdefault(subject, _Subject(self._clock.monotonic() + _NO_SUBSCRIBER_WAIT))

    def answered(self, tx: Transaction, subject: str) -> None:
        """A peer has answered: if it was unresponsive, it is back with the commit of `tx`."""
        found = self.subjects.get(subject)
        if found is not None and not found.back:
            retry.start_over(tx, subject)
            tx.after_commit(partial(self._returned, found))

    def no_subscriber(self, seq: int) -> None:
        """The broker reports that the subject of message `seq` has no subscriber."""
        if seq in self._probes:
            self._probes[seq].no_subscriber = True

    def expedite(self, tx: Transaction, now_ms: int) -> frozenset[str]:
        """Make everything pending for returned peers due now. Returns the subjects of returned peers."""
        for subject, found in self.subjects.items():
            if found.expedite:
                tx.undo.append(partial(setattr, found, "expedite", True))
                found.expedite = False
                # One that never greets is not sent everything again that it had: it answers nothing of that.
                only_queued = found.acknowledges is None and found.after > 0
                if not retry.expedite(tx, subject, now_ms, found.after, only_queued=only_queued):
                    tx.undo.append(partial(setattr, found, "back", found.back))
                    found.back = True  # nothing waits: there is nothing to try first
        return frozenset(subject for subject, found in self.subjects.items() if found.back)

    def clear(self, subjects: Iterable[str]) -> None:
        """Everything due on `subjects` was sent: forget them, except where the peer has returned again meanwhile."""
        for subject in subjects:
            found = self.subjects[subject]
            if found.back and not found.expedite:
                self._probes.pop(self.subjects.pop(subject).probe, None)

    def in_order(
        self, tx: Transaction, rows: list[Outgoing], catching_up: Set[str], ceiling: float, now_ms: int
    ) -> list[Outgoing]:
        """The messages to send in place of `rows` at `now_ms`, in order; those that may not be sent now get a later due time.

        On the subjects of `catching_up`, `rows` are all that is due, and are sent. `ceiling` is the longest time in seconds
        between two times at which everything unanswered is sent.
        """
        chosen = {row.seq: row for row in rows}  # a row that was requeued may occur more than once
        for subject in ({row.subject for row in rows} & self.subjects.keys()) - catching_up:
            found, mine = self.subjects[subject], sorted(row for row in chosen.values() if row.subject == subject)
            no_subscriber = found.no_subscriber
            mine = [row for row in mine if row.attempts or found.holds]
            going = {row.seq: row for row in self._choose(tx, found, mine, ceiling)} if mine and not found.back else {}
            for seq in [row.seq for row in mine if row.seq not in going]:
                del chosen[seq]
                retry.hold_back(tx, seq, self._due_ms(found, now_ms), tried=no_subscriber)
            chosen.update(going)
        return [chosen[seq] for seq in sorted(chosen)]

    def _choose(self, tx: Transaction, found: _Subject, mine: list[Outgoing], ceiling: float) -> list[Outgoing]:
        """Everything unanswered up to the last of `mine`, or only the oldest, if that is one of them or nothing was sent yet."""
        now = self._clock.monotonic()
        tx.undo.append(partial(self._restore, found, found.state))
        older = retry.unanswered(tx, mine[-1].subject, mine[-1].seq, 1 if found.absent else _WINDOW)
        unanswered = sorted({row.seq: row for row in (*older, *mine)}.values())
        # Without a probe nothing has shown yet whether the subject has a subscriber, however long that takes.
        going = unanswered[:1] if unanswered[0].seq == mine[0].seq or found.absent or not found.probe else []
        if found.probe and now >= found.until:
            going = going if found.no_subscriber or found.absent else unanswered[:_WINDOW]
            found.wait(now, ceiling)
        if going:
            self._probes.pop(found.probe, None)
            self._probes[going[0].seq] = found
            found.probed(going[0].seq, now)
        return going

    def _restore(self, found: _Subject, state: _State) -> None:
        self._probes.pop(found.probe, None)
        found.state = state
        if found.probe:
            self._probes[found.probe] = found

    def _due_ms(self, found: _Subject, now_ms: int) -> int:
        """A message held back is due when everything may be sent; to a returned peer, as soon as the older ones are."""
        left = 0.0 if found.back else max(0.0, found.until - self._clock.monotonic())
        return now_ms + int(1000 * left)
