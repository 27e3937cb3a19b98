"""Loads that are drawn: their rates, lengths and ends."""

from __future__ import annotations

from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.load.synthetic import ARRIVALS, Between, Recipe, draw_load, read_lengths
from config import ConfigError

SOME = Between(10, 10)
LONGEST = 1 << 20


def gaps(arrivals: str, burstiness: float = 0.25) -> list[float]:
    recipe = Recipe(
        input_tokens=SOME,
        output_tokens=SOME,
        rate=20.0,
        arrivals=arrivals,
        burstiness=burstiness,
        seconds=1000,
    )
    moments = draw_load(recipe, LONGEST).arrival_s
    assert max(moments) < 1000
    return [after - before for before, after in zip(moments, moments[1:], strict=False)]


@pytest.mark.parametrize(("arrivals", "deviation"), [("constant", 0.0), ("poisson", 1.0), ("bursty", 2.0)])
def test_gaps_have_the_mean_of_the_rate_and_their_own_deviation(arrivals: str, deviation: float) -> None:
    found = gaps(arrivals)
    assert fmean(found) == pytest.approx(1 / 20, rel=0.1)
    assert pstdev(found) / fmean(found) == pytest.approx(deviation, rel=0.1, abs=1e-6)


@pytest.mark.parametrize(("low", "high"), [(0.0, 40.0), (10.0, 30.0), (30.0, 10.0), (20.0, 20.0)])
def test_a_ramp_goes_from_rate_to_rate(low: float, high: float) -> None:
    recipe = Recipe(
        input_tokens=SOME, output_tokens=SOME, rate=high, ramp_from=low, arrivals="ramp", seconds=400
    )
    moments = draw_load(recipe, LONGEST).arrival_s
    assert list(moments) == sorted(moments)
    quarters = [sum(place * 100 <= at_s < (place + 1) * 100 for at_s in moments) / 100 for place in range(4)]
    wanted = [low + (high - low) * (place + 0.5) / 4 for place in range(4)]
    assert quarters == pytest.approx(wanted, abs=2.0)


@pytest.mark.parametrize(
    ("text", "mean", "least", "most"),
    [
        ("700", 700, 700, 700),
        ("100-300", 200, 100, 300),
        ("200:uniform", 200, 100, 300),
        ("1000:lognormal", 1000, 1, LONGEST),
        ("1000:lognormal:0.1", 1000, 500, 2000),
        ("sharegpt", 200, 4, 1024),
    ],
)
def test_lengths_have_their_mean_and_range(text: str, mean: float, least: int, most: int) -> None:
    lengths, rng = read_lengths(text, "input"), Random(1)
    drawn = [lengths.draw(rng) for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(mean, rel=0.15)
    assert least <= min(drawn) <= max(drawn) <= most


@pytest.mark.parametrize(
    "text",
    ["", "0", "-5", "1.5", "5-", "-", "9-3", "10:normal", "10:lognormal:0", "10:lognormal:x", "10:uniform:2"]
    + ["1e3", "٣", "9" * 5000, "sharegpt:2", "1-2:uniform"],
)
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        read_lengths(text, "output")


@given(st.sampled_from(ARRIVALS), st.integers(0, 3), st.integers(1, 50))
def test_the_same_recipe_makes_the_same_load(arrivals: str, seed: int, most: int) -> None:
    recipe = Recipe(
        input_tokens=read_lengths("50:lognormal", "input"),
        output_tokens=read_lengths("1-9", "output"),
        rate=5.0,
        arrivals=arrivals,
        seconds=20.0,
        requests=most,
        prefix_groups=3,
        prefix_tokens=16,
        seed=seed,
    )
    load = draw_load(recipe, LONGEST)
    assert load == draw_load(recipe, LONGEST)
    assert len(load) <= most
    assert min(load.input_tokens) > 16
    assert set(load.group) <= {0, 1, 2}


def test_drawn_lengths_are_cut_to_what_fits_and_given_ones_are_not() -> None:
    recipe = Recipe(
        input_tokens=read_lengths("90:lognormal:2", "input"),
        output_tokens=read_lengths("90:lognormal:2", "output"),
        requests=500,
    )
    load = draw_load(recipe, 100)
    assert max(map(sum, zip(load.input_tokens, load.output_tokens, strict=True))) == 100
    fixed = draw_load(Recipe(input_tokens=Between(200, 200), output_tokens=SOME, requests=1), 100)
    assert fixed.input_tokens[0] == 200


def test_without_a_rate_all_are_there_from_the_start() -> None:
    load = draw_load(Recipe(input_tokens=SOME, output_tokens=SOME, requests=3), LONGEST)
    assert list(load.arrival_s) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("rate", "seconds", "told"), [(1e6, 1e6, "more than 100,000,000"), (1e-6, 1.0, "no request")]
)
def test_absurd_loads_are_refused(rate: float, seconds: float, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        draw_load(Recipe(input_tokens=SOME, output_tokens=SOME, rate=rate, seconds=seconds), LONGEST)
