"""The history of the offline converter: the earlier lines take the place of a daemon's store.

One `LineHistory` has all lines; a `PeerHistory` is its view for one peer and one format, as the adapters need it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from aghbus.protocol.agh.effects import Advance, Open
from aghbus.protocol.agh.envelope import OPENING_KINDS, Envelope
from aghbus.protocol.agh.lifecycle import Transition, WorkView, after, opened_by, transition
from aghbus.protocol.agh.send import apply_own
from aghbus.protocol.formats.derived_ids import digest
from aghbus.protocol.formats.model import BridgeDirection, BridgedMessage

DEFAULT_WORK = "work_convert"
"""The work of a report when neither earlier lines nor `--work` determine it."""
_THREAD = "thread_convert"  # for works that no line opened


class ConvertedMessage(NamedTuple):
    """A message of a format, and the envelope that carried it."""

    format: str
    foreign_id: str | None
    scope: str
    message: Any
    envelope: Envelope


class LineHistory:
    """Envelopes, foreign messages and works of all earlier lines, in order.

    `named_work` is the id given with `--work`: one work for all lines; None creates one per line.
    """

    def __init__(self, workspace_id: str, channel: str, named_work: str | None) -> None:
        self._workspace_id = workspace_id
        self._channel = channel
        self._named_work = named_work
        self._works: dict[str, WorkView] = {}
        self._open: defaultdict[str, dict[str, None]] = defaultdict(dict)  # target: its open works
        self._envelopes: dict[tuple[str, str], Envelope] = {}  # sender and id
        self._of_work: defaultdict[str, list[Envelope]] = defaultdict(list)
        self._by_id: defaultdict[tuple[str, str | None], list[ConvertedMessage]] = defaultdict(list)
        self._latest: dict[tuple[str, str], ConvertedMessage] = {}
        self._carried: dict[tuple[str, str], ConvertedMessage] = {}
        self._results: dict[tuple[str, str], list[Any]] = {}

    # works

    def work(self, work_id: str | None) -> WorkView | None:
        """A work after the earlier lines."""
        return None if work_id is None else self._works.get(work_id)

    def open_for(self, target: str) -> tuple[WorkView, ...]:
        """Open works that a line opened for this peer, in order."""
        return tuple(self._works[work_id] for work_id in self._open[target])

    def unnamed_work(self, line: int, initiator: str, target: str) -> WorkView:
        """The work for a report of `target` that names none; created if it does not exist."""
        work_id = self._named_work or (DEFAULT_WORK if line == 1 else f"{DEFAULT_WORK}_{line}")
        return self.missing_work(work_id, initiator, target, "thread", _THREAD)

    def missing_work(self, work_id: str, initiator: str, target: str, surface: str, container: str) -> WorkView:
        """The work with this id, created if it does not exist: the line that opened it is missing."""
        if work_id not in self._works:
            self._works[work_id] = WorkView(
                workspace_id=self._workspace_id,
                channel=self._channel,
                work_id=work_id,
                surface=surface,
                container=container,
                initiator=initiator,
                target=target,
                state="submitted",
                opening_id="msg_" + digest("convert", work_id),
            )
        return self._works[work_id]

    # envelopes

    def judge_own(self, envelopes: Sequence[Envelope]) -> None:
        """Check the envelopes of one line, as its daemon would before sending. Raises RequestError."""
        works: dict[str | None, WorkView] = {}
        for envelope in envelopes:
            work = works.get(envelope.work_id) or self.work(envelope.work_id)
            for effect in apply_own(envelope, work, None):
                if isinstance(effect, Open):
                    works[effect.work.work_id] = effect.work
                elif isinstance(effect, Advance):
                    works[effect.after.work_id] = effect.after

    def apply(self, envelope: Envelope) -> Transition | None:
        """Add an envelope and apply it to its work; the lifecycle's verdict."""
        self._envelopes.setdefault((envelope.sender, envelope.id), envelope)
        if envelope.work_id is None:
            return None
        self._of_work[envelope.work_id].append(envelope)
        work = self.work(envelope.work_id)
        verdict = transition(work, envelope)
        if verdict.outcome == "opened":
            opened = self._works[envelope.work_id] = opened_by(envelope)
            self._open[opened.target][opened.work_id] = None
        elif work is not None and verdict.outcome in ("advanced", "unchanged"):
            moved = self._works[envelope.work_id] = after(work, envelope, verdict)
            if moved.is_terminal:
                self._open[moved.target].pop(moved.work_id, None)
        return verdict

    def envelope(self, sender: str, envelope_id: str) -> Envelope | None:
        """The envelope of an earlier line."""
        return self._envelopes.get((sender, envelope_id))

    def of_work(self, work_id: str) -> list[Envelope]:
        """The envelopes of a work, oldest first."""
        return self._of_work[work_id]

    # foreign messages

    def remember(self, converted: ConvertedMessage) -> None:
        """Add a foreign message."""
        self._by_id[(converted.format, converted.foreign_id)].append(converted)
        self._latest[(converted.format, converted.scope)] = converted
        self._carried[(converted.format, converted.envelope.id)] = converted

    def with_id(self, format: str, foreign_id: str, scope: str) -> list[ConvertedMessage]:
        """Messages with this foreign id in a scope, oldest first; in any scope when it is empty."""
        found = self._by_id.get((format, foreign_id), [])
        return [converted for converted in found if scope in ("", converted.scope)]

    def answered(self, format: str, foreign_id: str, scope: str) -> list[ConvertedMessage]:
        """As `with_id`; in any scope when there is none in this one, since an agent may have invented it."""
        return self.with_id(format, foreign_id, scope) or self.with_id(format, foreign_id, "")

    def latest(self, format: str, scope: str) -> ConvertedMessage | None:
        """The latest message of a scope."""
        return self._latest.get((format, scope))

    def carried_by(self, format: str, envelope_id: str) -> ConvertedMessage | None:
        """The message that an envelope carried."""
        return self._carried.get((format, envelope_id))

    def keep_result(self, envelopes: Iterable[Envelope], messages: list[Any]) -> None:
        """Record the output of the line that produced these envelopes."""
        self._results.update(((envelope.sender, envelope.id), messages) for envelope in envelopes)

    def result(self, envelope: Envelope) -> list[Any]:
        """The output of the line that produced this envelope."""
        return self._results.get((envelope.sender, envelope.id), [])


class PeerHistory:
    """`adapters.model.MessageHistory` over the earlier lines, for the peer `us` and one format."""

    def __init__(self, lines: LineHistory, format: str, us: str) -> None:
        self._lines = lines
        self._format = format
        self._us = us
        self.sent_before: str | None = None
        """The latest argument of `sent` that had been sent before."""

    @property
    def whole(self) -> bool:
        """False: earlier messages may be missing."""
        return False

    def find(self, foreign_id: str, scope: str = "", direction: BridgeDirection | None = None) -> BridgedMessage | None:
        """The latest message with this foreign id in this scope; in any scope when it is empty."""
        for converted in reversed(self._lines.with_id(self._format, foreign_id, scope)):
            if direction in (None, self._direction(converted)):
                return self._known(converted)
        return None

    def arrived(self, foreign_id: str) -> list[BridgedMessage]:
        """All messages with this foreign id that were sent to us, latest first."""
        converted = reversed(self._lines.with_id(self._format, foreign_id, ""))
        found = [self._known(one) for one in converted if self._direction(one) == "in"]
        return [known for known in found if known is not None]

    def last(self, scope: str) -> BridgedMessage | None:
        """The latest message of this scope."""
        return self._known(self._lines.latest(self._format, scope))

    def work(self, work_id: str) -> WorkView | None:
        """A work after the earlier lines."""
        return self._lines.work(work_id)

    def assigned_works(self) -> tuple[WorkView, ...]:
        """The open works that earlier lines opened for us."""
        return self._lines.open_for(self._us)

    def was_delivered(self, work: WorkView) -> bool:
        """True: deliveries are unknown offline."""
        return True

    def received_works(self) -> bool:
        """True: deliveries are unknown offline."""
        return True

    def opening(self, work: WorkView) -> BridgedMessage | None:
        """The message of this format that opened a work."""
        return self._known(self._lines.carried_by(self._format, work.opening_id))

    def reported(self, work: WorkView) -> BridgedMessage | None:
        """The latest message of ours that is a trace of this work."""
        ours = (one.id for one in reversed(self._lines.of_work(work.work_id)) if one.sender == self._us)
        carried = (self._lines.carried_by(self._format, one) for one in ours if one != work.opening_id)
        return next((self._known(one) for one in carried if one is not None), None)

    def reports(self, scope: str) -> list[BridgedMessage]:
        """None: which works belong together is unknown offline."""
        return []

    def answered(self, work: WorkView) -> str:
        """The id of the other participant's envelope that our next message on this work answers."""
        kinds = OPENING_KINDS if work.target == self._us else frozenset({"trace"})
        theirs = work.other(self._us)
        for envelope in reversed(self._lines.of_work(work.work_id)):
            if envelope.sender == theirs and envelope.kind in kinds:
                return envelope.id
        return work.opening_id

    def sent(self, envelope_id: str) -> WorkView | Literal[True] | None:
        """Whether an earlier line sent an own envelope with this id."""
        envelope = self._lines.envelope(self._us, envelope_id)
        if envelope is None:
            return None
        self.sent_before = envelope_id
        return self._lines.work(envelope.work_id) or True

    def _direction(self, converted: ConvertedMessage) -> BridgeDirection:
        return "out" if converted.envelope.sender == self._us else "in"

    def _known(self, converted: ConvertedMessage | None) -> BridgedMessage | None:
        if converted is None:
            return None
        return BridgedMessage(
            message=converted.message,
            direction=self._direction(converted),
            envelope_id=converted.envelope.id,
            sender=converted.envelope.sender,
            at=converted.envelope.ts,
            work=self._lines.work(converted.envelope.work_id),
        )
