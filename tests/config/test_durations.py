"""Durations: what people write, what the program holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.durations import LONGEST, RULE, format_duration, parse_duration

DAY_NS = 24 * 3600 * 10**9


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("100ms", 0.1),
        ("1.5s", 1.5),
        ("1m30s", 90.0),
        ("100us", 0.0001),
        ("100µs", 0.0001),
        ("100μs", 0.0001),
        ("7ns", 7e-9),
        ("1h2m3s4ms", 3723.004),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("-20ms", -0.02),
        ("+20ms", 0.02),
        (" 20ms ", 0.02),
        ("0", 0.0),
        ("0s", 0.0),
        ("500", 0.5),
        (500, 0.5),
        (0, 0.0),
        (-1, -0.001),
    ],
)
def test_a_duration_is_read_as_seconds(text: str | int, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "1.5", "10 ms", "1d", "1m30", "ms1", "1e3s", "--1s", "½s", "٣s", "1s" * 33, "soon"]
)
def test_what_is_no_duration_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration such as 250ms"):
        parse_duration(text)


@pytest.mark.parametrize("value", [True, None, 0.5, [], {}])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(value)
    assert str(caught.value) == RULE


@pytest.mark.parametrize("value", ["9999999h", 10**18, "-9999999h"])
def test_a_duration_beyond_292_years_is_refused(value: str | int) -> None:
    with pytest.raises(ValueError, match="292 years"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (90, "1m30s"),
        (60, "1m0s"),
        (3600, "1h0m0s"),
        (3661.5, "1h1m1.5s"),
        (0.0001, "100µs"),
        (0.0015, "1.5ms"),
        (7e-9, "7ns"),
        (0, "0s"),
        (-0.02, "-20ms"),
        (0.9999999999, "1s"),
    ],
)
def test_seconds_are_written_as_go_writes_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(-DAY_NS, DAY_NS))
def test_what_is_written_is_read_back(nanoseconds: int) -> None:
    seconds = nanoseconds / 1e9
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.text(max_size=80))
def test_any_text_is_a_duration_or_breaks_the_rule(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        assert str(error).startswith("must be a duration")
    else:
        assert abs(seconds) <= LONGEST / 1e9
