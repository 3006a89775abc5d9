"""Peers that have left something unanswered until its second try: what may go out to them, so that they get all of it in order.

    silent   only the oldest unanswered message goes out; at growing intervals everything, if somebody listens there
    back     it has greeted or answered: all that waits for it goes out in one go, and what is new behind that

Otherwise a peer that comes back between our tries would get what happens to be due, and what is older after it. The broker says
when nobody listens on a subject; then even everything in order would do no good, as the peer may begin to listen in the
middle of it. A peer is silent on one subject: it may have left one channel and not another.
"""

from collections.abc import Iterable, Set
from functools import partial
from typing import Final

from aghbus.daemon.base.clock import Clock
from aghbus.protocol.base.backoff import exponential_delay
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import retry
from aghbus.store.tables.outbox import Outgoing

FIRST_PAUSE: Final = 1.0  # seconds between the first two times that all unanswered messages go out again; doubled
_WINDOW: Final = 256  # unanswered messages that go out at once
_WORD: Final = 0.25  # seconds in which the broker has said that nobody listens


_State = tuple[float, int, bool, int]


class _Silence:
    """One subject. `until` is when (monotonic) everything may go out again, `probe` the sequence of the oldest that last did."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.away = False  # nobody listens
        self.back = False
        self.overdue = False  # back, but what waits is not due yet
        self.probe = 0
        self._waits = 0

    @property
    def state(self) -> _State:
        """What a look for what may go out changes."""
        return self.until, self._waits, self.away, self.probe

    @state.setter
    def state(self, state: _State) -> None:
        self.until, self._waits, self.away, self.probe = state

    def probed(self, seq: int, now: float) -> None:
        """The oldest goes out: somebody listens, unless the broker says otherwise."""
        self.probe, self.away = seq, False
        self.until = max(self.until, now + _WORD)

    def wait(self, now: float, ceiling: float) -> None:
        """Until the next time that everything may go out."""
        self._waits += 1
        self.until = now + exponential_delay(self._waits, FIRST_PAUSE, ceiling)

    def ended(self) -> None:
        """The peer was heard."""
        self.back = self.overdue = True


class Silences:
    """The silent peers of one publisher, by subject. In memory: after a start the first tries find out again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._silent: dict[str, _Silence] = {}
        self._probes: dict[int, _Silence] = {}

    @property
    def any(self) -> bool:
        """Whether there is any."""
        return bool(self._silent)

    def concern(self, rows: Iterable[Outgoing]) -> bool:
        """Whether any of `rows` goes to a silent peer."""
        return bool(self._silent) and any(row.subject in self._silent for row in rows)

    def begins(self, subject: str) -> None:
        """A try was in vain."""
        self._on(subject)

    def is_back(self, subject: str) -> None:
        """A peer has joined."""
        self._on(subject).ended()

    def _on(self, subject: str) -> _Silence:
        return self._silent.setdefault(subject, _Silence(self._clock.monotonic() + _WORD))

    def answered(self, tx: Transaction, subject: str) -> bool:
        """A peer has answered; whether that ends a silence, with the commit of `tx`."""
        silence = self._silent.get(subject)
        if silence is None or silence.back:
            return False
        tx.after_commit(silence.ended)
        return True

    def nobody_at(self, seq: int) -> None:
        """The broker says that nobody listens where message `seq` went."""
        if seq in self._probes:
            self._probes[seq].away = True

    def hasten(self, tx: Transaction, now_ms: int) -> frozenset[str]:
        """All that waits for peers that are back is due now. The subjects of those that are back."""
        for subject, silence in self._silent.items():
            if silence.overdue:
                retry.hasten(tx, subject, now_ms)
                silence.overdue = False
                tx.after_rollback(silence.ended)
        return frozenset(subject for subject, silence in self._silent.items() if silence.back)

    def caught_up(self, subjects: Iterable[str]) -> None:
        """All that was due has gone out on `subjects`: no silence is left, but where a peer has come back again meanwhile."""
        for subject in subjects:
            if not self._silent[subject].overdue:
                self._probes.pop(self._silent.pop(subject).probe, None)

    def in_order(
        self, tx: Transaction, rows: list[Outgoing], catching_up: Set[str], ceiling: float, now_ms: int
    ) -> list[Outgoing]:
        """What goes out in place of `rows` at `now_ms`, in order; what may not go out now is due later.

        On subjects of `catching_up` `rows` are all that is due, and go out. `ceiling` in seconds is the longest time between two
        times that everything unanswered goes out.
        """
        chosen = {row.seq: row for row in rows}  # one that is asked for again and again comes more than once
        for subject in ({row.subject for row in rows} & self._silent.keys()) - catching_up:
            silence, mine = self._silent[subject], sorted(row for row in chosen.values() if row.subject == subject)
            away = silence.away
            going = {} if silence.back else {row.seq: row for row in self._going(tx, silence, mine, ceiling)}
            for seq in [row.seq for row in mine if row.seq not in going]:
                del chosen[seq]
                retry.hold_back(tx, seq, self._due_ms(silence, now_ms), tried=away)
            chosen.update(going)
        return [chosen[seq] for seq in sorted(chosen)]

    def _going(self, tx: Transaction, silence: _Silence, mine: list[Outgoing], ceiling: float) -> list[Outgoing]:
        """Everything unanswered up to the last of `mine`, or only the oldest, if that is one of them."""
        now = self._clock.monotonic()
        tx.after_rollback(partial(self._restore, silence, silence.state))
        older = retry.unanswered(tx, mine[-1].subject, mine[-1].seq, _WINDOW)
        unanswered = sorted({row.seq: row for row in (*older, *mine)}.values())
        going = unanswered[:1] if unanswered[0].seq == mine[0].seq else []
        if now >= silence.until:
            going = going if silence.away else unanswered[:_WINDOW]
            silence.wait(now, ceiling)
        if going:
            self._probes.pop(silence.probe, None)
            self._probes[going[0].seq] = silence
            silence.probed(going[0].seq, now)
        return going

    def _restore(self, silence: _Silence, state: _State) -> None:
        self._probes.pop(silence.probe, None)
        silence.state = state
        if silence.probe:
            self._probes[silence.probe] = silence

    def _due_ms(self, silence: _Silence, now_ms: int) -> int:
        """What is held back goes with everything; to a peer that is back, as soon as what is older goes."""
        left = 0.0 if silence.back else max(0.0, silence.until - self._clock.monotonic())
        return now_ms + int(1000 * left)
