"""Loads: what a trace says, and what is drawn; how each thing that is wrong is told in one line."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random
from statistics import fmean, pstdev
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.lab.load.synthetic import ARRIVALS, Between, Recipe, draw_load, read_lengths
from app.lab.load.trace import NO_GROUP, Load, read_trace
from config import ConfigError

HEADER = "arrival_s,input_tokens,output_tokens\n"
GROUPED = "arrival_s,input_tokens,output_tokens,prefix_group,prefix_tokens\n"


def trace(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def complaint(folder: Path, text: str) -> str:
    path = trace(folder, text)
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


def test_columns_are_found_by_name_and_others_ignored(tmp_path: Path) -> None:
    path = trace(tmp_path, "note,output_tokens,arrival_s,input_tokens\nx,3,0.5,10\n,4,0.5,20\n")
    load = read_trace(path)
    assert list(load.arrival_s) == [0.5, 0.5]
    assert list(load.input_tokens) == [10, 20]
    assert list(load.output_tokens) == [3, 4]
    assert not load.group


def test_what_gzip_packed_is_read_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "packed.csv"
    path.write_bytes(gzip.compress((HEADER + "1,2,3\n").encode()))
    assert list(read_trace(path).output_tokens) == [3]


def test_groups_have_numbers_and_no_name_is_no_group(tmp_path: Path) -> None:
    path = trace(tmp_path, GROUPED + "0,9,1,sales,8\n1,9,1,,\n2,9,1,help,4\n3,9,1,sales,9\n4,9,1,sales,0\n")
    load = read_trace(path)
    assert list(load.group) == [0, NO_GROUP, 1, 0, NO_GROUP]
    assert list(load.prefix_tokens) == [8, 0, 4, 9, 0]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("2,1,1\n1,1,1\n", ", row 3: arrival_s 1 is before that of the row above"),
        ("-1,1,1\n", ", row 2: arrival_s '-1' must be a number of seconds from 0 on"),
        ("nan,1,1\n", ", row 2: arrival_s 'nan' must be a number of seconds from 0 on"),
        ("1e999,1,1\n", ", row 2: arrival_s '1e999' must be a number of seconds from 0 on"),
        ("soon,1,1\n", ", row 2: arrival_s 'soon' must be a number of seconds from 0 on"),
        ("1,0,1\n", ", row 2: input_tokens '0' must be a whole number from 1 to 1073741824"),
        ("1,-5,1\n", ", row 2: input_tokens '-5' must be a whole number from 1 to 1073741824"),
        ("1,1,2.5\n", ", row 2: output_tokens '2.5' must be a whole number from 1 to 1073741824"),
        ("1,1,\n", ", row 2: output_tokens '' must be a whole number from 1 to 1073741824"),
        ("1,1," + "9" * 5000 + "\n", f", row 2: output_tokens '{'9' * 40}' must be a whole number"),
        ("1,1,1\n\n2,1,1\n", ", row 3: is empty"),
        ("1,1,1\n2,1\n", ", row 3: has 2 fields, and lacks some"),
        ('1,1,"1\n', ", row 2: unexpected end of data"),
        ("", ": it has no rows"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, rows: str, told: str) -> None:
    assert complaint(tmp_path, HEADER + rows).startswith(told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ", row 1: column arrival_s is missing"),
        ("arrival_s,input_tokens\n", ", row 1: column output_tokens is missing"),
        ("arrival_s,arrival_s,input_tokens,output_tokens\n", ", row 1: column arrival_s is twice"),
        ("arrival_s,input_tokens,output_tokens,prefix_group\n", ", row 1: column prefix_tokens is missing"),
        (GROUPED + "0,9,1,a,10\n", ", row 2: prefix_tokens 10 must not exceed input_tokens 9"),
        (GROUPED + "0,9,1,a,-1\n", ", row 2: prefix_tokens '-1' must be a whole number from 0"),
    ],
)
def test_a_wrong_header_or_group_is_named(tmp_path: Path, text: str, told: str) -> None:
    assert complaint(tmp_path, text).startswith(told)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    for content, told in (
        (b"\xff\xfe\x00", "neither text in UTF-8"),
        (HEADER.encode() + b"1,2,3\n" * 9999 + b"\xff", "neither text in UTF-8"),
        (gzip.compress(HEADER.encode(), mtime=0)[:-9], "cannot be unpacked"),
        (b"\x1f\x8b" + bytes(30), "cannot be unpacked"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=told):
            read_trace(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "absent.csv")


@settings(max_examples=40, deadline=None)
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


def test_a_part_has_the_rows_that_were_asked_for() -> None:
    load = Load("x")
    for number in range(4):
        load.arrival_s.append(number / 2)
        for column in (load.input_tokens, load.output_tokens, load.group, load.prefix_tokens):
            column.append(number + 1)
    part = load.part([1, 3])
    assert (list(part.arrival_s), list(part.input_tokens), list(part.group)) == ([0.5, 1.5], [2, 4], [2, 4])


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


@settings(max_examples=30, deadline=None)
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
