"""Durations, loopback addresses and suggestions for misspelt names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.base.addresses import is_loopback
from aghbus.protocol.base.backoff import Backoff, exponential_delay
from aghbus.protocol.base.durations import format_duration, parse_duration
from aghbus.protocol.base.spelling import nearest


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("24h", 86_400),
        ("7d", 604_800),
        ("1.5", 1.5),
        (" 2s ", 2),
        ("0", 0),
        ("1h30m", 5400),
        ("1d12h0.5s", 129_600.5),
        ("1m5ms", 60.005),
    ],
)
def test_a_duration_is_a_number_or_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1e3", "1w", "1 s", "5.", ".5", "٣s", "1s1", "1h30", "1h 30m", "1" * 13]
)
def test_any_other_text_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@given(st.integers(0, 10**12))
def test_a_formatted_duration_parses_to_the_same_milliseconds(milliseconds: int) -> None:
    assert round(parse_duration(format_duration(milliseconds / 1000)) * 1000) == milliseconds


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1"])
def test_localhost_and_loopback_addresses_are_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "10.0.0.1", "0.0.0.0", "::", "example.org", "127.0.0.1.example.org", "[::1]"])
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_the_nearest_known_name_is_suggested_if_it_is_similar() -> None:
    assert nearest("retyr", ["retry", "limits"]) == "retry"
    assert nearest("xyz", ["retry", "limits"]) is None


def test_the_delay_doubles_with_each_failure_up_to_the_ceiling() -> None:
    assert [exponential_delay(failures, 0.5, 3.0) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_any_number_of_failures_gives_the_ceiling() -> None:
    assert exponential_delay(1_000_000, 0.001, 300.0) == 300.0


def test_the_first_delay_is_never_longer_than_the_ceiling() -> None:
    assert exponential_delay(1, 5.0, 2.0) == 2.0


def test_a_series_begins_again_after_a_reset() -> None:
    backoff = Backoff(1.0, 60.0)
    assert [backoff.next(), backoff.next()] == [1.0, 2.0]
    backoff.reset()
    assert backoff.next() == 1.0
