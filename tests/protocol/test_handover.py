"""Which peer gets a work for a capability, whatever peers claim of themselves."""

from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.handover import MAX_COUNT, Candidate, Load, least_busy_first, load_of

COUNTS = st.integers(0, MAX_COUNT)
LOADS = st.none() | st.builds(Load, COUNTS, COUNTS)
CANDIDATES = st.builds(
    Candidate,
    peer_id=st.sampled_from("abcdefgh"),
    is_contact=st.booleans(),
    trust=st.sampled_from(["verified", "unverified"]),
    load=LOADS,
    ours=COUNTS,
    last_seen_ms=COUNTS,
)


@given(st.lists(CANDIDATES, max_size=8))
def test_no_claim_puts_a_peer_before_contacts_or_verified_ones(candidates: list[Candidate]) -> None:
    ranks = [(one.is_contact, one.trust == "verified") for one in least_busy_first(candidates)]
    assert ranks == sorted(ranks, reverse=True)


@given(LOADS, st.integers(2, 100))
def test_works_that_we_have_there_count_whatever_the_peer_says(load: Load | None, ours: int) -> None:
    full = Candidate("full", False, "unverified", load, ours * MAX_COUNT, 0)
    idle = Candidate("idle", False, "unverified", Load(0, 1), 0, 0)
    assert [one.peer_id for one in least_busy_first([full, idle])] == ["idle", "full"]


def test_a_load_that_is_none_is_ignored() -> None:
    assert load_of({"aghbus.load": [2, 4]}) == Load(2, 4)
    for said in (None, 3, [1], [1, 2, 3], [-1, 0], [True, 1], [1.5, 2], ["1", 2], [MAX_COUNT + 1, 0]):
        assert load_of({"aghbus.load": said}) is None
