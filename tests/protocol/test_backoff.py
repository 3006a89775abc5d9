"""Exponential backoff."""

from aghbus.protocol.base.backoff import Backoff, exponential_delay


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
