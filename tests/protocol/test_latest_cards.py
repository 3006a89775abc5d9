"""The cards that peers sent last: read once for the same bytes, and again for any others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.errors import Malformed
from aghbus.protocol.latest_cards import LatestCards


class Reader:
    """Reads a card as its text, and records what it reads."""

    def __init__(self) -> None:
        self.read: list[tuple[bytes, str]] = []

    def __call__(self, raw: bytes, sender: str) -> str:
        self.read.append((raw, sender))
        if raw == b"invalid":
            raise Malformed("is invalid", "body.peer_card")
        return f"{sender} {raw.decode()}"


@given(st.lists(st.tuples(st.sampled_from([b"one", b"two", b"three"]), st.sampled_from("abc")), max_size=30))
def test_the_card_is_always_that_of_the_bytes_and_unchanged_ones_are_read_once(sent: list[tuple[bytes, str]]) -> None:
    reader = Reader()
    cards = LatestCards(reader)
    last: dict[str, bytes] = {}
    changes = []
    for raw, sender in sent:
        assert cards(raw, sender) == f"{sender} {raw.decode()}"
        changes += [(raw, sender)] if last.get(sender) != raw else []
        last[sender] = raw
    assert reader.read == changes


def test_an_invalid_card_is_refused_each_time_and_does_not_replace_the_last_one() -> None:
    reader = Reader()
    cards = LatestCards(reader)
    cards(b"one", "a")
    for _ in range(2):
        with pytest.raises(Malformed):
            cards(b"invalid", "a")
    assert cards(b"one", "a") == "a one"
    assert len(reader.read) == 3


def test_the_oldest_cards_are_dropped_beyond_the_bound() -> None:
    reader = Reader()
    cards = LatestCards(reader, max_bytes=10_000)
    for number in range(100):
        cards(b"x" * 500, f"p{number}")
    cards(b"x" * 500, "p99")
    assert len(reader.read) == 100
    cards(b"x" * 500, "p0")
    cards(b"y" * 20_000, "large")
    assert len(reader.read) == 102
    assert cards(b"y" * 20_000, "large") == "large " + "y" * 20_000
