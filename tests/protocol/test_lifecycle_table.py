"""The lifecycle against the table of the specification, which is repeated here on purpose."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.lifecycle import (
    OPEN_STATES,
    PROGRESS,
    TERMINAL_STATES,
    TRANSITIONS,
    State,
    Transition,
    WorkView,
    after,
    event_of,
    opened_by,
    transition,
)
from aghbus.protocol.agh.replay import Replay
from tests.support.wire import NOW, A, B, C, dump, envelope, receipt, say, trace, wire

# Spec section 6, cell by cell: `->` moves there, `=` unchanged, `+` advanced (progress), `!` ignored, invalid_transition.
SPEC: Final = """
                      submitted        working          needs_input
message               =                =                ->working
receipt:accepted      ->working        =                =
receipt:duplicate     =                =                =
receipt:expired       =                =                =
receipt:unsupported   =                =                =
receipt:rejected      ->failed         ->failed         ->failed
receipt:canceled      ->canceled       ->canceled       ->canceled
trace:working         ->working        +                ->working
trace:needs_input     ->needs_input    ->needs_input    +
trace:completed       ->completed      ->completed      ->completed
trace:failed          ->failed         ->failed         ->failed
trace:canceled        ->canceled       ->canceled       ->canceled
trace:submitted       !                !                !
"""
REASONS: Final = {"rejected": "busy", "duplicate": "duplicate", "expired": "expired", "unsupported": "unsupported_kind"}


def cells() -> list[tuple[State, str, str]]:
    _, *rows = [line.split() for line in SPEC.strip().splitlines()]
    return [(state, row[0], cell) for row in rows for state, cell in zip(OPEN_STATES, row[1:], strict=True)]


def events(event: str, *, from_target: bool = True) -> list[Envelope]:
    """Every envelope that is this event, sent by the target or by the initiator."""
    ends = {"sender": B, "to": A} if from_target else {"sender": A, "to": B}
    if event == "message":
        return [envelope(kind, **ends) for kind in ("say", "capability")]
    kind, _, value = event.partition(":")
    return [trace(value, **ends) if kind == "trace" else receipt(value, REASONS.get(value), **ends)]


def work(state: State) -> WorkView:
    view = opened_by(say(id="msg_open"))
    return WorkView(**{name: getattr(view, name) for name in view.__struct_fields__} | {"state": state})


def expected(state: State, cell: str) -> Transition:
    if cell == "!":
        return Transition("ignored", state, "invalid_transition")
    if cell.startswith("->"):
        moved: dict[str, State] = {name: name for name in (*OPEN_STATES, *TERMINAL_STATES)}
        return Transition("advanced", moved[cell[2:]])
    return Transition("advanced" if cell == "+" else "unchanged", state)


def test_the_columns_of_the_table_are_the_open_states() -> None:
    assert tuple(SPEC.strip().splitlines()[0].split()) == OPEN_STATES


@pytest.mark.parametrize(("state", "event", "cell"), cells())
def test_every_state_and_event_gives_the_result_in_the_table(state: State, event: str, cell: str) -> None:
    for given_event in events(event):
        assert event_of(given_event) == event
        assert transition(work(state), given_event) == expected(state, cell)
    for given_event in events(event, from_target=False):
        if event == "receipt:accepted":
            assert transition(work(state), given_event) == Transition("ignored", state, "actor_not_allowed")
        else:
            assert transition(work(state), given_event) == expected(state, cell)


@pytest.mark.parametrize("state", TERMINAL_STATES)
@pytest.mark.parametrize("event", sorted({event for _, event, _ in cells()}))
def test_a_terminal_state_refuses_every_event(state: State, event: str) -> None:
    for given_event in events(event) + events(event, from_target=False):
        outcome = "rejected" if event == "message" else "ignored"
        assert transition(work(state), given_event) == Transition(outcome, state, "work_closed")  # type: ignore[arg-type]


def test_the_table_in_code_has_exactly_the_cells_of_the_specification() -> None:
    assert set(TRANSITIONS) == {(state, event) for state, event, cell in cells() if cell != "!"}
    assert {(state, event) for state, event, cell in cells() if cell == "+"} == PROGRESS
    assert not {state for state, _ in TRANSITIONS} & set(TERMINAL_STATES)


class TestChecksBeforeTheTable:
    def test_without_a_work_only_directed_conversation_opens_one(self) -> None:
        for kind in ("say", "capability"):
            assert transition(None, envelope(kind)) == Transition("opened", "submitted")
            assert transition(None, envelope(kind, to=None)) == Transition("unchanged", None)
        for late in (receipt("accepted"), trace("working"), trace("submitted")):
            assert transition(None, late) == Transition("ignored", None, "not_found")

    def test_the_container_is_checked_before_actor_and_state(self) -> None:
        for state in (*OPEN_STATES, *TERMINAL_STATES):
            for sender in (A, B, C):
                elsewhere = say(sender=sender, to=B if sender != B else A, thread_id="thread_other")
                assert transition(work(state), elsewhere) == Transition("rejected", state, "work_container_mismatch")
                other = trace("failed", sender=sender, thread_id="thread_other")
                assert transition(work(state), other) == Transition("ignored", state, "work_container_mismatch")

    def test_a_direct_room_is_not_the_container_of_a_thread(self) -> None:
        direct = say(surface="direct", thread_id=..., direct_id="direct_" + "0" * 32)
        assert transition(work("working"), direct).reason == "work_container_mismatch"

    def test_the_actor_is_checked_before_the_state(self) -> None:
        for state in (*OPEN_STATES, *TERMINAL_STATES):
            for outsider in (say(sender=C), trace("failed", sender=C), receipt("rejected", "busy", sender=C)):
                assert transition(work(state), outsider) == Transition("ignored", state, "actor_not_allowed")

    def test_conversation_must_be_addressed_to_the_other_participant(self) -> None:
        for to in (None, A, C):
            assert transition(work("working"), say(to=to)) == Transition("ignored", "working", "actor_not_allowed")
        assert transition(work("working"), say(sender=B, to=A)).outcome == "unchanged"

    def test_traces_and_receipts_may_have_any_receiver(self) -> None:
        for to in (None, C):
            assert transition(work("submitted"), trace("working", to=to)).outcome == "advanced"
            assert transition(work("submitted"), receipt("accepted", to=to)).outcome == "advanced"


class TestWorkState:
    def test_the_opening_envelope_fixes_container_and_participants(self) -> None:
        view = opened_by(say(id="msg_open", work_id="any work"))
        assert (view.workspace_id, view.channel, view.work_id) == ("ws_alpha", "builders", "any work")
        assert (view.surface, view.container) == ("thread", "thread_release_check")
        assert (view.initiator, view.target, view.state, view.opening_id) == (A, B, "submitted", "msg_open")
        assert (view.other(A), view.other(B), view.other(C)) == (B, A, None)

    @pytest.mark.parametrize("unfit", [say(to=None), say(work_id=...)])
    def test_an_envelope_without_receiver_or_work_id_opens_no_work(self, unfit: Envelope) -> None:
        with pytest.raises(ValueError, match="directed envelope with a work_id"):
            opened_by(unfit)

    def test_the_terminal_envelope_is_recorded_and_never_replaced(self) -> None:
        done = trace("completed")
        ended = after(work("working"), done, transition(work("working"), done))
        assert (ended.state, ended.terminal_id, ended.terminal_sender, ended.advanced) == (
            "completed",
            done.id,
            B,
            True,
        )
        assert ended.is_terminal

    def test_a_progress_trace_advances_a_work_and_other_repetitions_do_not(self) -> None:
        beat = trace("working")
        assert after(work("working"), beat, transition(work("working"), beat)).advanced
        answer = receipt("duplicate", "duplicate")
        assert not after(work("submitted"), answer, transition(work("submitted"), answer)).advanced


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["say", "capability", "receipt", "trace"]), st.integers(0, 5), st.sampled_from([A, B, C])
    ),
    max_size=25,
)
_STATUSES: Final = ("accepted", "rejected", "duplicate", "expired", "unsupported", "canceled")
_STATES: Final = ("submitted", "working", "needs_input", "completed", "failed", "canceled")


def message(number: int, kind: str, pick: int, sender: str) -> bytes:
    body = {}
    if kind == "receipt":
        status = _STATUSES[pick]
        body = {"body": {"for_id": "msg_open", "status": status, "reason_code": REASONS.get(status)}}
    elif kind == "trace":
        body = {"body": {"state": _STATES[pick]}}
    return dump(wire(kind, id=f"msg_{number}", sender=sender, to=A if sender == B else B, **body))


@given(_EVENTS, st.data())
def test_a_terminal_state_is_never_left_in_any_order_with_duplicates(
    picked: list[tuple[str, int, str]], data: st.DataObject
) -> None:
    opening = dump(wire("say", id="msg_open"))
    sequence = [message(number, *pick) for number, pick in enumerate(picked)] + [opening]
    repeats = data.draw(st.lists(st.sampled_from(sequence), max_size=15))
    delivered = data.draw(st.permutations(sequence + repeats))
    replay, ended = Replay(), None
    for raw in delivered:
        verdict = replay.feed(raw, NOW)
        if ended is not None and verdict.state is not None:
            assert verdict.state == ended
        if ended is not None:
            assert verdict.outcome in ("ignored", "rejected")
        if verdict.outcome == "advanced" and verdict.state in TERMINAL_STATES:
            ended = verdict.state


def test_a_replay_ignores_duplicates_and_reports_refusals() -> None:
    replay = Replay()
    raw = dump(wire("say"))
    assert replay.feed(raw, NOW).outcome == "opened"
    again = replay.feed(raw, NOW)
    assert (again.id, again.outcome, again.state, again.reason) == ("msg_1", "ignored", "submitted", "duplicate")
    refused = replay.feed(dump(wire("say", kind="direct")), NOW)
    assert (refused.id, refused.outcome, refused.state, refused.reason) == (
        "msg_1",
        "refused",
        None,
        "unsupported_kind",
    )
    assert replay.feed(dump(wire("greet", id="msg_g")), NOW).outcome == "unchanged"
    assert replay.feed(dump(wire("say", id="msg_x", channel="other")), NOW).outcome == "opened"  # another work
