"""Authentication tags: the key of two handles, and what a tag covers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.trust.keys import PublicKey, SigningKey, handle_of
from aghbus.protocol.agh.trust.tags import is_tag_of, pair_key, tag_of

SEEDS = st.binary(min_size=32, max_size=32)
HANDLES = st.from_regex(r"[a-z0-9_-]{1,32}@[0-9a-f]{32}", fullmatch=True)
KEYS = st.binary(min_size=32, max_size=32)

# Points of order 1, 2, 4 and 8, and one outside the main subgroup (RFC 8032's generator plus the point of order 2).
IMPROPER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "9599999999999999999999999999999999999999999999999999999999999999",
]


def public(key: SigningKey) -> PublicKey:
    return PublicKey(key.public)


@given(SEEDS, SEEDS, HANDLES, HANDLES)
def test_both_directions_have_one_key(one: bytes, other: bytes, here: str, there: str) -> None:
    a, b = SigningKey(one), SigningKey(other)
    key = pair_key(a, here, public(b), there)
    assert key == pair_key(b, there, public(a), here)
    assert key is not None and len(key) == 32


@given(SEEDS, SEEDS, SEEDS, HANDLES, HANDLES, HANDLES)
def test_another_peer_or_another_name_has_another_key(
    one: bytes, other: bytes, third: bytes, here: str, there: str, elsewhere: str
) -> None:
    a, b, c = (SigningKey(seed) for seed in (one, other, third))
    key = pair_key(a, here, public(b), there)
    if third != other:
        assert pair_key(a, here, public(c), there) != key
    if elsewhere != there:
        assert pair_key(a, here, public(b), elsewhere) != key


@given(KEYS, KEYS, st.binary(max_size=300), st.integers(0, 299), st.integers(1, 255))
def test_a_tag_covers_every_byte_under_its_key(key: bytes, other: bytes, raw: bytes, at: int, change: int) -> None:
    tag = tag_of(key, raw)
    assert len(tag) == 22
    assert is_tag_of(tag, key, raw)
    assert not is_tag_of(tag, key, raw + b"\n")
    if other != key:
        assert not is_tag_of(tag, other, raw)
    if at < len(raw):
        assert not is_tag_of(tag, key, raw[:at] + bytes([raw[at] ^ change]) + raw[at + 1 :])


@given(KEYS, st.text())
def test_any_other_text_is_no_tag(key: bytes, text: str) -> None:
    assert is_tag_of(text, key, b"raw") == (text == tag_of(key, b"raw"))


@pytest.mark.parametrize("point", IMPROPER)
def test_public_keys_of_small_order_have_no_key(point: str) -> None:
    assert pair_key(SigningKey(bytes(32)), "a@0", PublicKey(bytes.fromhex(point)), "b@0") is None


def test_a_tag_is_derived_as_the_page_says() -> None:
    """Fixed: both sides may run different versions (docs/interop.md)."""
    a, b = SigningKey(bytes(32)), SigningKey(bytes(range(32)))
    key = pair_key(a, handle_of("a", a.public), public(b), handle_of("b", b.public))
    assert key is not None
    assert (key.hex(), tag_of(key, b"{}")) == (
        "272340f87b9889c6081467bd3b2e2bbae9b84c51802865ff1fa55b082880543c",
        "_IqLiA7wgHDzolkWoq2bvA",
    )
