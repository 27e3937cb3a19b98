"""The choice of a rank: vLLM's rule for any loads, in any sequence of requests."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.extensions.data_parallel.balance import RankLoad, least_busy, score

IDLE = RankLoad(in_flight=0, waiting=0, running=0, kv_usage=0.0)
COUNTS = st.integers(min_value=0, max_value=100)
LOADS = st.builds(
    RankLoad,
    in_flight=COUNTS,
    waiting=COUNTS,
    running=COUNTS,
    kv_usage=st.floats(min_value=0.0, max_value=1.0),
)


@pytest.mark.parametrize(
    ("load", "api_servers", "expected"),
    [
        (IDLE, 1, 0.0),
        (RankLoad(3, 0, 2, 0.0), 1, 3.0),
        (RankLoad(3, 0, 2, 0.0), 4, 12.0),
        (RankLoad(1, 4, 3, 0.5), 1, 7.0),
        (RankLoad(1, 4, 3, 0.75), 1, 7.0 + 4 * 6 * 0.25),
        (RankLoad(1, 0, 3, 1.0), 1, 3.0),
    ],
)
def test_load_score_of_a_rank_depends_on_the_number_of_api_servers(
    load: RankLoad, api_servers: int, expected: float
) -> None:
    assert score(load, api_servers) == expected


@given(st.lists(LOADS, min_size=1, max_size=8), st.integers(0, 7), st.integers(1, 8))
def test_scan_from_the_start_index_chooses_the_first_least_busy_rank(
    loads: list[RankLoad], start: int, api_servers: int
) -> None:
    chosen = least_busy(loads, start, api_servers)
    scores = [score(load, api_servers) for load in loads]
    assert scores[chosen] == min(scores)
    distance = (chosen - start) % len(loads)
    for skipped in range(distance):
        assert scores[(start + skipped) % len(loads)] > scores[chosen]


@given(st.integers(1, 8), st.integers(0, 50))
def test_idle_ranks_are_chosen_in_rotation(ranks: int, requests: int) -> None:
    chosen = [least_busy([IDLE] * ranks, start) for start in range(requests)]
    assert chosen == [start % ranks for start in range(requests)]


@given(st.integers(1, 8), st.lists(st.one_of(st.none(), st.integers(0, 400)), max_size=60))
def test_requests_without_a_rank_go_to_the_least_loaded_rank(
    ranks: int, pins: list[int | None]
) -> None:
    """No request ends. An unpinned one never goes to a rank that has more than another one."""
    in_flight: Counter[int] = Counter()
    for start, pin in enumerate(pins):
        loads = [IDLE._replace(in_flight=in_flight[rank]) for rank in range(ranks)]
        rank = least_busy(loads, start)
        if pin is None:
            assert in_flight[rank] == min(load.in_flight for load in loads)
        else:
            rank = pin % ranks
        in_flight[rank] += 1
