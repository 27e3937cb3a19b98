"""Loads: what a trace says, and what is drawn; how each thing that is wrong is told in one line."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random
from statistics import fmean, pstdev
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.lab.load.loads import (
    ARRIVALS,
    NO_GROUP,
    Between,
    LoadTrace,
    Recipe,
    draw_load,
    read_lengths,
    read_trace,
)
from config import ConfigError

HEADER = "arrival_s,input_tokens,output_tokens\n"
GROUPED = "arrival_s,input_tokens,output_tokens,prefix_group,prefix_tokens\n"


def trace(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_columns_are_found_by_name_and_others_ignored(tmp_path: Path) -> None:
    load = read_trace(trace(tmp_path, "note,output_tokens,arrival_s,input_tokens\nx,3,0.5,10\n,4,0.5,20\n"))
    assert (list(load.arrival_s), list(load.input_tokens)) == ([0.5, 0.5], [10, 20])
    assert list(load.output_tokens) == [3, 4]
    assert not load.group
    (path := tmp_path / "packed.csv").write_bytes(gzip.compress((HEADER + "1,2,3\n").encode()))
    assert list(read_trace(path).output_tokens) == [3]


def test_groups_have_numbers_and_no_name_is_no_group(tmp_path: Path) -> None:
    path = trace(tmp_path, GROUPED + "0,9,1,sales,8\n1,9,1,,\n2,9,1,help,4\n3,9,1,sales,9\n4,9,1,sales,0\n")
    load = read_trace(path)
    assert list(load.group) == [0, NO_GROUP, 1, 0, NO_GROUP]
    assert list(load.prefix_tokens) == [8, 0, 4, 9, 0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HEADER + "2,1,1\n1,1,1\n", ", row 3: arrival_s 1 is before that of the row above"),
        (HEADER + "nan,1,1\n", ", row 2: arrival_s 'nan' must be a number of seconds from 0 on"),
        (HEADER + "1,0,1\n", ", row 2: input_tokens '0' must be a whole number from 1 to 1073741824"),
        (HEADER + "1,1," + "9" * 5000 + "\n", f", row 2: output_tokens '{'9' * 40}' must be a whole number"),
        (HEADER + "1,1,1\n\n2,1,1\n", ", row 3: is empty"),
        (HEADER + "1,1,1\n2,1\n", ", row 3: has 2 fields, and lacks some"),
        (HEADER + '1,1,"1\n', ", row 2: unexpected end of data"),
        (HEADER, ": it has no rows"),
        ("arrival_s,input_tokens\n", ", row 1: column output_tokens is missing"),
        ("arrival_s,arrival_s,input_tokens,output_tokens\n", ", row 1: column arrival_s is twice"),
        (GROUPED.replace(",prefix_tokens", ""), ", row 1: column prefix_tokens is missing"),
        (GROUPED + "0,9,1,a,10\n", ", row 2: prefix_tokens 10 must not exceed input_tokens 9"),
        (b"\xff\xfe\x00", ": it is neither text in UTF-8"),
        (gzip.compress(HEADER.encode(), mtime=0)[:-9], ": it cannot be unpacked"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(tmp_path: Path, text: str | bytes, told: str) -> None:
    (path := tmp_path / "trace.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and told in message and "\n" not in message


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_whatever_a_file_holds_is_read_or_refused(content: bytes, with_header: bool) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        path.write_bytes(HEADER.encode() * with_header + content)
        try:
            load = read_trace(path)
        except ConfigError as error:
            assert str(path) in str(error)
        else:
            assert len(load.arrival_s) == len(load.input_tokens) == len(load.output_tokens) > 0
            assert list(load.arrival_s) == sorted(load.arrival_s)


SOME = Between(10, 10)
LONGEST = 1 << 20


def drawn(most: int = LONGEST, **fields: Any) -> LoadTrace:
    return draw_load(Recipe(**{"input_tokens": SOME, "output_tokens": SOME} | fields), most)


@pytest.mark.parametrize(("arrivals", "deviation"), [("constant", 0.0), ("poisson", 1.0), ("bursty", 2.0)])
def test_gaps_have_the_mean_of_the_rate_and_their_own_deviation(arrivals: str, deviation: float) -> None:
    moments = drawn(rate=20.0, arrivals=arrivals, burstiness=0.25, seconds=1000).arrival_s
    found = [after - before for before, after in zip(moments, moments[1:], strict=False)]
    assert max(moments) < 1000 and fmean(found) == pytest.approx(1 / 20, rel=0.1)
    assert pstdev(found) / fmean(found) == pytest.approx(deviation, rel=0.1, abs=1e-6)


@pytest.mark.parametrize(("low", "high"), [(0.0, 40.0), (30.0, 10.0)])
def test_a_ramp_goes_from_rate_to_rate(low: float, high: float) -> None:
    moments = drawn(rate=high, ramp_from=low, arrivals="ramp", seconds=400).arrival_s
    assert list(moments) == sorted(moments)
    quarters = [sum(place * 100 <= at_s < (place + 1) * 100 for at_s in moments) / 100 for place in range(4)]
    wanted = [low + (high - low) * (place + 0.5) / 4 for place in range(4)]
    assert quarters == pytest.approx(wanted, abs=2.0)


@pytest.mark.parametrize(
    ("text", "mean", "least", "most"),
    [
        ("100-300", 200, 100, 300),
        ("200:uniform", 200, 100, 300),
        ("1000:lognormal:0.1", 1000, 500, 2000),
        ("sharegpt", 200, 4, 1024),
    ],
)
def test_lengths_have_their_mean_and_range(text: str, mean: float, least: int, most: int) -> None:
    lengths, rng = read_lengths(text, "input"), Random(1)
    drawn = [lengths.draw(rng) for _ in range(20_000)]
    assert fmean(drawn) == pytest.approx(mean, rel=0.15)
    assert least <= min(drawn) <= max(drawn) <= most


def test_other_lengths_are_refused() -> None:
    for text in ("", "0", "1.5", "9-3", "10:normal", "10:lognormal:0", "10:uniform:2", "٣", "9" * 5000):
        with pytest.raises(ValueError, match="must"):
            read_lengths(text, "output")


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ARRIVALS), st.integers(0, 3), st.integers(1, 50))
def test_the_same_recipe_makes_the_same_load(arrivals: str, seed: int, most: int) -> None:
    lengths = {"input_tokens": read_lengths("50:lognormal", "input"), "output_tokens": Between(1, 9)}
    recipe = Recipe(
        **lengths, rate=5.0, arrivals=arrivals, seconds=20.0, requests=most, prefix_groups=3,
        prefix_tokens=16, seed=seed,
    )  # fmt: skip
    load = draw_load(recipe, LONGEST)
    assert load == draw_load(recipe, LONGEST)
    assert len(load) <= most
    assert min(load.input_tokens) > 16
    assert set(load.group) <= {0, 1, 2}


def test_drawn_lengths_are_cut_to_what_fits_and_given_ones_are_not() -> None:
    wide = read_lengths("90:lognormal:2", "input")
    load = drawn(100, input_tokens=wide, output_tokens=wide, requests=500)
    assert max(map(sum, zip(load.input_tokens, load.output_tokens, strict=True))) == 100
    assert drawn(100, input_tokens=Between(200, 200), requests=1).input_tokens[0] == 200
