"""Sorted columns: the values of one sorted list, to the last bit."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from app.shared.statistics import ascending_parts, column_mean_and_quantiles, quantile

VALUES = st.lists(st.floats(0, 1e4) | st.sampled_from([0.1, 0.2]), min_size=1, max_size=300)


@given(VALUES, st.integers(1, 100))
def test_parts_are_the_sorted_values(values: list[float], run: int) -> None:
    parts = list(ascending_parts(array("d", values), run))
    assert [value for part in parts for value in part] == sorted(values)


@given(VALUES, st.integers(1, 100))
def test_mean_and_quantiles_are_those_of_a_sorted_list(values: list[float], run: int) -> None:
    ascending = sorted(values)
    shares = [0.0, 0.5, 0.9, 0.999]
    assert column_mean_and_quantiles(array("d", values), shares, run) == [
        sum(ascending) / len(ascending),
        *(quantile(ascending, share) for share in shares),
    ]


def test_parts_of_a_long_column_are_about_as_long_as_its_runs() -> None:
    column = array("d", (number * 7919 % 10_007 for number in range(10_007)))
    parts = list(ascending_parts(column, 1000))
    assert 8 <= len(parts) <= 12
    assert max(map(len, parts)) < 2000
