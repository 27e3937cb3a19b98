"""One definition of a quantile: the value that exceeds a share of the values."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from app.shared.statistics import quantile, weighted_quantiles
from workbench.runs.token_gaps import RESOLUTION_S, TokenGaps

SHARES = st.lists(st.floats(0, 0.999), min_size=1, max_size=4).map(sorted)
WHOLE = st.lists(st.integers(0, 1000), min_size=1, max_size=60)


def counted_quantiles(counts: Iterable[tuple[int, int]], shares: list[float]) -> list[int]:
    """Returns what the counter of token gaps computed."""
    ascending = sorted(counts)
    total = sum(count for _, count in ascending)
    lengths = iter(ascending)
    covered = 0
    length = 0
    found = []
    for share in shares:
        while covered <= int(total * share):
            length, count = next(lengths)
            covered += count
        found.append(length)
    return found


@given(WHOLE, SHARES)
def test_quantiles_of_values_and_of_counts_agree(values: list[int], shares: list[float]) -> None:
    ascending = sorted(values)
    expected = [quantile(ascending, share) for share in shares]
    counts = Counter(values)
    assert counted_quantiles(counts.items(), shares) == expected, "as the gaps counted"
    assert list(weighted_quantiles(counts.items(), shares)) == expected, "with counts as weights"
    gaps = TokenGaps()
    for value, count in counts.items():
        gaps.add(value * RESOLUTION_S, count, 0.0)
    assert list(gaps.quantiles_s(shares)) == [value * RESOLUTION_S for value in expected]
