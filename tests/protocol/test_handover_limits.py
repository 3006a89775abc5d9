"""Which peers a work for a capability may still be given to, and what a peer may write into the extensions."""

import pytest

from aghbus.protocol.agh.handover import MAX_TRIED, Candidate, Handover, Tried, accept_limit, next_candidates

ORDERED = [Candidate(name, is_contact=False, trust="unverified", load=None, ours=0, last_seen_ms=0) for name in "abc"]


def left(*tried: str, refused: str = "") -> str:
    """The peers that are left after those in `tried`."""
    handover = Handover("x", tried=tuple(Tried(f"work_{at}", one, "", one in refused) for at, one in enumerate(tried)))
    return "".join(one.peer_id for one in next_candidates(ORDERED, handover))


def test_each_peer_is_asked_at_most_twice() -> None:
    assert left("a") == "bc"
    assert left("a", "b", "c") == "abc"
    assert left("a", "b", "c", refused="b") == "ac"
    assert left("a", "b", "a", "c") == "bc"  # c came later
    assert left("a", "b", "a", "c", "b", "c") == ""


def test_invented_names_do_not_keep_a_work_going() -> None:
    assert left(*(f"invented{at}" for at in range(MAX_TRIED - 1))) == "abc"
    assert left(*(f"invented{at}" for at in range(MAX_TRIED))) == ""


@pytest.mark.parametrize(("said", "seconds"), [(30, 30.0), (0.5, 0.5), (True, None), (-1, None), ("1", None)])
def test_a_limit_of_a_peer_is_a_positive_number(said: object, seconds: float | None) -> None:
    assert accept_limit({"aghbus.accept_within": said}) == seconds
