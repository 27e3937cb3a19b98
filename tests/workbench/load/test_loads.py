"""Loads that are drawn: arrivals and lengths; wrong lengths are refused."""

from random import Random
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.load.loads import LoadTrace
from workbench.load.synthetic import ARRIVALS, Between, Recipe, draw_load, read_lengths

SOME = Between(10, 10)
LONGEST = 1 << 20


def drawn(limit: int = LONGEST, **fields: Any) -> LoadTrace:
    return draw_load(Recipe(**{"input_tokens": SOME, "output_tokens": SOME} | fields), limit)


@pytest.mark.parametrize(
    ("arrivals", "deviation"), [("constant", 0.0), ("poisson", 1.0), ("bursty", 2.0)]
)
def test_arrival_gaps_have_the_mean_and_deviation_of_the_arrival_process(
    arrivals: str, deviation: float
) -> None:
    moments = drawn(rate=20.0, arrivals=arrivals, burstiness=0.25, seconds=1000).arrival_s
    gaps = [later - earlier for earlier, later in zip(moments, moments[1:], strict=False)]
    assert max(moments) < 1000 and fmean(gaps) == pytest.approx(1 / 20, rel=0.1)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(deviation, rel=0.1, abs=1e-6)


@pytest.mark.parametrize(("low", "high"), [(0.0, 40.0), (30.0, 10.0)])
def test_ramp_changes_the_rate_linearly(low: float, high: float) -> None:
    moments = drawn(rate=high, ramp_from=low, arrivals="ramp", seconds=400).arrival_s
    assert list(moments) == sorted(moments)
    quarters = [
        sum(place * 100 <= at_s < (place + 1) * 100 for at_s in moments) / 100 for place in range(4)
    ]
    wanted = [low + (high - low) * (place + 0.5) / 4 for place in range(4)]
    assert quarters == pytest.approx(wanted, abs=2.0)


@pytest.mark.parametrize(
    ("text", "mean", "min_length", "max_length"),
    [
        ("100-300", 200, 100, 300),
        ("200:uniform", 200, 100, 300),
        ("1000:lognormal:0.1", 1000, 500, 2000),
        ("sharegpt", 200, 4, 1024),
    ],
)
def test_drawn_lengths_have_the_specified_mean_and_range(
    text: str, mean: float, min_length: int, max_length: int
) -> None:
    lengths = read_lengths(text, "input")
    rng = Random(1)
    drawn = [lengths.draw(rng) for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(mean, rel=0.15)
    assert min_length <= min(drawn) <= max(drawn) <= max_length


def test_invalid_length_specifications_are_rejected() -> None:
    for text in (
        "",
        "0",
        "1.5",
        "9-3",
        "10:normal",
        "10:lognormal:0",
        "10:uniform:2",
        "٣",
        "9" * 5000,
    ):
        with pytest.raises(ValueError, match="must"):
            read_lengths(text, "output")


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ARRIVALS), st.integers(0, 3), st.integers(1, 50))
def test_same_seed_draws_the_same_load(arrivals: str, seed: int, max_requests: int) -> None:
    lengths = {
        "input_tokens": read_lengths("50:lognormal", "input"),
        "output_tokens": Between(1, 9),
    }
    recipe = Recipe(
        **lengths, rate=5.0, arrivals=arrivals, seconds=20.0, requests=max_requests, prefix_groups=3,
        prefix_tokens=16, seed=seed,
    )  # fmt: skip
    load = draw_load(recipe, LONGEST)
    assert load == draw_load(recipe, LONGEST)
    assert len(load) <= max_requests
    assert min(load.input_tokens) > 16
    assert set(load.group) <= {0, 1, 2}


def test_only_lognormal_token_counts_are_limited_to_the_context_length() -> None:
    wide = read_lengths("90:lognormal:2", "input")
    load = drawn(100, input_tokens=wide, output_tokens=wide, requests=500)
    assert max(map(sum, zip(load.input_tokens, load.output_tokens, strict=True))) == 100
    assert drawn(100, input_tokens=Between(200, 200), requests=1).input_tokens[0] == 200
