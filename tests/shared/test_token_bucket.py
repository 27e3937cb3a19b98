"""A token bucket: never more than it may, and exactly when it may."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.shared.token_bucket import ROUNDING_S, TokenBucket

rates = st.floats(0.01, 1e6)
bursts = st.floats(0.5, 1e5)
waits = st.lists(st.tuples(st.floats(0, 600), st.floats(0.1, 50)), max_size=60)
starts = st.floats(0, 1e7)


def test_full_bucket_allows_a_burst_and_then_one_token_per_second() -> None:
    bucket = TokenBucket(60, 3)
    assert [bucket.take(1, 0.0) for _ in range(4)] == [0.0, 0.0, 0.0, 1.0]
    assert bucket.take(1, 0.5) == 0.5
    assert bucket.take(1, 1.0) == 0.0
    assert bucket.remaining(1.0) == 0.0 and bucket.full_in(1.0) == 3.0
    assert bucket.remaining(100.0) == 3.0 and bucket.full_in(100.0) == 0.0


@pytest.mark.parametrize(("per_minute", "burst"), [(0, 1), (-1, None), (60, 0), (float("nan"), 1)])
def test_rate_or_burst_of_zero_is_rejected(per_minute: float, burst: float | None) -> None:
    with pytest.raises(ValueError):
        TokenBucket(per_minute, burst)


@given(rate=rates, burst=bursts, asks=waits, start_s=starts)
def test_tokens_granted_never_exceed_the_burst_plus_the_refill(
    rate: float, burst: float, asks: list[tuple[float, float]], start_s: float
) -> None:
    bucket = TokenBucket(rate, burst, start_s)
    now_s = start_s
    given_s = 0.0
    for pause_s, amount in asks:
        now_s += pause_s
        if bucket.take(amount, now_s) == 0.0:
            given_s += amount
    slack = rate / 60 * 2 * ROUNDING_S + 1e-6 * given_s
    assert given_s <= burst + (now_s - start_s) * rate / 60 + slack


@given(rate=rates, burst=bursts, asks=waits, start_s=starts)
def test_tokens_become_available_when_the_returned_wait_time_has_passed(
    rate: float, burst: float, asks: list[tuple[float, float]], start_s: float
) -> None:
    bucket = TokenBucket(rate, burst, start_s)
    now_s = start_s
    for pause_s, amount in asks:
        now_s += pause_s
        wait_s = bucket.take(amount, now_s)
        if wait_s == 0.0:
            continue
        assert (wait_s == math.inf) == (amount > burst)
        if wait_s < math.inf:
            assert wait_s < 10 * ROUNDING_S or bucket.take(amount, now_s + wait_s / 2) > 0.0
            now_s += wait_s
            assert bucket.take(amount, now_s) == 0.0
